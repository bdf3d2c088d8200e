"""Where the time of a step goes, and telling the record and the board.

load | forward and backward (with exchange and packing inside) | update | other      -> one Step event
"""

import time
from collections.abc import Callable

from shoal.cluster.board import State
from shoal.cluster.gate import pass_gate
from shoal.cluster.group import Group
from shoal.cluster.lab.speed import rest
from shoal.core.clock import now
from shoal.core.events import SECONDS, Sink, Step, Traffic
from shoal.sync.exchange.base import Exchange
from shoal.sync.pace.base import Spent

TRAFFIC_SECONDS = 2.0


class Progress:
    """Counts steps and samples of one worker, and times their phases."""

    def __init__(self, sink: Sink, group: Group, speed: float = 1.0) -> None:
        self.sink, self.board, self.rank, self.seconds, self.speed = sink, group.board, group.rank, group.seconds, speed
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.has_loader = False
        self._spent: list[tuple[Spent, Exchange]] = []
        self._opened: float | None = None
        self._traffic = now()
        self._stepped_at: float | None = None
        self._update = 0.0
        self._clear()

    def watch(self, spent: Spent, exchange: Exchange) -> None:
        """Include what one exchange spends."""
        self._spent.append((spent, exchange))

    def load_began(self) -> None:
        time_ = now()
        if self._stepped_at is not None:
            self._close(time_)
        if self._opened is None:
            self._opened = time_
        self._load_from = time_
        self.board.note(self.rank, State.loading)

    def load_ended(self, samples: int) -> None:
        self._load += now() - self._load_from
        self._samples += samples
        self.board.note(self.rank, State.computing)

    def counted(self, samples: int) -> None:
        """The script said how many samples this step has."""
        self._samples += samples

    def exchange_began(self) -> None:
        """In a step without a loader nothing else tells when it began."""
        if self._opened is None:
            self._opened = now()

    def update_began(self) -> None:
        if self.speed < 1:
            self._slow_down()
        self._update_from, self._spent_before = now(), self.exchanging()
        if self._opened is None:
            self._opened = self._update_from
        self.board.note(self.rank, State.updating)

    def update_ended(self, first: bool) -> None:
        """`first`: of several optimizers, one counts the steps."""
        time_, spent = now(), self.exchanging()
        # an optimizer with a closure runs backward passes inside its step
        self._update += time_ - self._update_from - (spent - self._spent_before)
        if first or self._stepped_at is not None:
            self._stepped_at, self._spent_at_step = time_, spent
            if first and not self.has_loader:
                self._close(time_)
                self._opened = time_
        self.board.note(self.rank, State.computing)

    def pause(self) -> None:
        """What follows is not training: the end of a pass over the data, of an epoch, of the run."""
        if self._stepped_at is not None:
            self._close(now())
        self._opened = None
        self._clear()

    def _close(self, time_: float) -> None:
        opened, stepped = self._opened, self._stepped_at
        assert opened is not None
        assert stepped is not None
        encode, wait = self._taken(lambda s: s.encode), self._taken(lambda s: s.wait)
        raw, sent, wire = (sum(getattr(e, name) for _, e in self._spent) for name in ("raw", "sent", "wire"))
        seconds, other = time_ - opened, time_ - stepped - (encode + wait - self._spent_at_step)
        computing = max(
            0.0, seconds - self._load - self._update - other - (encode - self._encode) - (wait - self._wait)
        )
        last = self._spent[-1][0] if self._spent else Spent()
        self.samples += self._samples
        self.sink.emit(
            Step(
                at=time.time(),
                step=self.step,
                epoch=self.epoch,
                samples=self._samples,
                seconds=round(seconds, SECONDS),
                load=round(self._load, SECONDS),
                forward_backward=round(computing, SECONDS),
                exchange_wait=round(wait - self._wait, SECONDS),
                encode=round(encode - self._encode, SECONDS),
                update=round(self._update, SECONDS),
                other=round(other, SECONDS),
                raw=raw - self._bytes[0],
                sent=sent - self._bytes[1],
                wire=wire - self._bytes[2],
                ready=tuple(round(t, SECONDS) for t in last.ready),
                done=tuple(round(t, SECONDS) for t in last.done),
            )
        )
        self.step += 1
        self.board.progress(self.rank, self.epoch, self.step, self.samples, sent)
        self._opened = None
        self._clear()
        if time_ - self._traffic > TRAFFIC_SECONDS:
            self.tell_traffic()
        pass_gate(self.board, self.rank, self.step, self.seconds)

    def _slow_down(self) -> None:
        """Sleep as long as a slower processor would have computed on."""
        if self._opened is not None:
            spent = self.exchanging() - self._encode - self._wait
            time.sleep(rest(max(0.0, now() - self._opened - self._load - spent), self.speed))

    def _taken(self, what: Callable[[Spent], float]) -> float:
        return sum(what(spent) for spent, _ in self._spent)

    def exchanging(self) -> float:
        """Seconds of packing and waiting since the run began."""
        return self._taken(lambda s: s.encode + s.wait)

    def _clear(self) -> None:
        """Begin the next step's account."""
        self._load = self._update = 0.0
        self._spent_before = self._spent_at_step = 0.0
        self._samples = 0
        self._load_from = self._update_from = 0.0
        self._stepped_at = None
        self._encode, self._wait = self._taken(lambda s: s.encode), self._taken(lambda s: s.wait)
        self._bytes = tuple(sum(getattr(e, name) for _, e in self._spent) for name in ("raw", "sent", "wire"))

    def tell_traffic(self) -> None:
        """Bytes per peer so far."""
        self._traffic = now()
        peers: dict[str, tuple[int, int]] = {}
        for _, exchange in self._spent:
            for peer in exchange.peers:
                sent, wire = peers.get(str(peer), (0, 0))
                peers[str(peer)] = (
                    sent + exchange.sent // len(exchange.peers),
                    wire + exchange.wire // len(exchange.peers),
                )
        if peers:
            self.sink.emit(Traffic(at=time.time(), step=self.step, peers=peers))
