"""A worker's links to all its peers, as the training thread uses them."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from shoal.core.clock import Deadline, now
from shoal.core.errors import DeadlineError, PeerLost, ShoalError, ViewEnded
from shoal.hosts.status_board import StatusBoard
from shoal.transport.endpoint import Book, BookEntry, LinkEndpoint, check_book
from shoal.transport.io_loop import IoLoop
from shoal.transport.messenger import Messenger
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import RateLimit
from shoal.transport.tasks import CollectiveTask, MeshView

LOOK = 0.1
"""Seconds between looks at whether the peers still live, in a wait."""
SILENCE = 10.0
"""Seconds of silence that are always forgiven: peers say something every second, but machines stop and links break."""
FLUSH = 10.0
COMMAND = 30.0


class ViewWatcher(Protocol):
    """Knows whether the view still stands, and wants to know of whom nothing is heard."""

    @property
    def disturbed(self) -> bool: ...

    def doubt(self, peers: Mapping[str, bool]) -> None:
        """Members by id, and whether their endpoints are closed."""

    def late(self, member: str, reason: str) -> None:
        """This member has been waited for longer than is good."""

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        """This member breaks the protocol; ViewEnded if the run can go on without it, else the error."""


class LinkMesh:
    """Used by one thread of a worker."""

    def __init__(
        self,
        run: str,
        book: Book,
        rank: int,
        endpoint: LinkEndpoint,
        board: StatusBoard | None = None,
        silence: float = SILENCE,
        allowance: RateLimit | None = None,
    ) -> None:
        check_book(book)
        self.rank, self.silence, self.board = rank, silence, board or StatusBoard.private()
        self._watcher: ViewWatcher | None = None
        self._owner = os.getpid()
        self._next: Counter[int] = Counter()
        self._lost = -1
        self._waiting: tuple[float, CollectiveTask] | None = None
        self._closed = False
        self.loop = IoLoop(run, book, rank, endpoint, self.board, allowance)
        self.loop.exchange.silence = silence
        self.messenger = Messenger(self.loop)
        self.loop.start()

    def watch_view(self, watcher: ViewWatcher) -> None:
        """Ask `watcher` whether the view still stands; without one, a lost peer ends the run."""
        self._watcher = watcher
        self.loop.exchange.silence = None  # membership decides which member is lost, not the link

    @property
    def view(self) -> MeshView:
        return self.loop.view

    @property
    def generation(self) -> int:
        return self.loop.generation

    def link(self, rank: int) -> LinkPeer:
        """What is known of a peer: `link(2).out.estimate.rate`, `.rtt`."""
        return self.loop.peers[rank]

    def wait_for_peers(self, seconds: float) -> None:
        """Wait until every peer was heard."""
        deadline = Deadline.after(seconds)
        while missing := [rank for rank in self.view.others if self.link(rank).heard is None]:
            self._look_around(missing, deadline)
            threading.Event().wait(0.005)

    def submit(self, task: CollectiveTask, number: int | None = None) -> None:
        """Hand in a task; members of the view hand in those of a channel in the same order, or say the number."""
        task.number = self._next[task.channel] if number is None else number
        self._next[task.channel] = task.number + 1
        self.loop.call(lambda: self.loop.add(task))

    def wait(self, task: CollectiveTask, seconds: float) -> None:
        """Return when the task is done."""
        deadline = Deadline.after(seconds)
        self._waiting = (now(), task)
        try:
            while not task.done.wait(LOOK):
                self._look_around(task.missing(), deadline)
            if task.error is not None and self._watcher is not None and self._watcher.disturbed:
                raise ViewEnded("the members change")
        finally:
            self._waiting = None
            if self._watcher is not None:
                self._watcher.doubt({})
        if task.error is not None:
            if self._watcher is not None and task.culprit is not None:
                self._watcher.blame(self.link(task.culprit).entry.member, task.error)
            raise task.error

    def waiting(self) -> str:
        """What a wait is for, while it lasts: `waiting 3.2 s for worker 2 (host b), last seen …`; else nothing."""
        waiting = self._waiting
        if waiting is None:
            return ""
        moment = now()
        suspects = "; ".join(self.link(rank).describe(moment) for rank in waiting[1].missing())
        return f"waiting {moment - waiting[0]:.1f} s for {suspects}"

    def abort(self, reason: str) -> None:
        """End all tasks; waiting callers get PeerLost. Arrays that were handed in are unchanged."""
        self._command(lambda: self.loop.tasks.abort(PeerLost(f"worker {self.rank} stops: {reason}")))

    def leave(self, generation: int) -> None:
        """From any thread: release callers that wait in a view before `generation`."""
        self.loop.call(lambda: self.loop.leave(generation, ViewEnded("the members change")))

    def enrol(self, book: Book) -> None:
        """Reach these, and nobody else."""
        check_book(book)
        self._command(lambda: self.loop.enrol(book))

    def befriend(self, rank: int, entry: BookEntry) -> None:
        """Reach one more, which is in no view yet; until the next `enrol`."""
        self.enrol({**self.loop.book, rank: entry})

    def part(self, rank: int) -> None:
        """Give up one that was befriended, with all that waits for it; members of the view stay."""
        if rank not in self.view.ranks and rank in self.loop.book:
            self.enrol({other: entry for other, entry in self.loop.book.items() if other != rank})

    def reform(self, generation: int, ranks: Sequence[int]) -> None:
        """Go on with `ranks` only. Generations only grow: one that is not new is refused."""
        if generation <= self.generation or self.rank not in ranks or not set(ranks) <= {self.rank, *self.loop.peers}:
            raise ShoalError(
                f"worker {self.rank} cannot go from generation {self.generation} to {generation} with workers "
                f"{sorted(ranks)}; "
                "generations grow, and members are in the book"
            )
        self._command(lambda: self.loop.reform(generation, ranks))
        self._next.clear()
        self._lost = -1

    def close(self, reason: str = "ended") -> None:
        """Wait until what was sent has arrived, say goodbye, end the thread."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self.messenger.close()
        deadline = Deadline.after(FLUSH if self._lost < 0 else 0.5)
        self.loop.call(self.loop.hurry)
        while self.loop.is_alive() and not self.loop.flushed and not deadline.expired:
            threading.Event().wait(0.002)
        if self.loop.is_alive():
            self.loop.call(lambda: self.loop.end(reason, self._lost))
        self.loop.join(5.0)
        if not self.loop.is_alive():
            self.loop.close()

    def _command(self, command: Callable[[], None]) -> None:
        done = threading.Event()

        def work() -> None:
            command()
            done.set()

        self.loop.call(work)
        if not done.wait(COMMAND):
            raise ShoalError(f"worker {self.rank}: the communication thread does not answer: {self.loop.failure!r}")

    def _look_around(self, missing: Sequence[int], deadline: Deadline) -> None:
        if self.loop.failure is not None:
            raise ShoalError(f"worker {self.rank}: the communication thread failed: {self.loop.failure!r}")
        if self.board.aborted is not None:
            raise PeerLost(f"worker {self.rank} stops: worker {self.board.aborted} is lost")
        peers = [self.link(rank) for rank in self.view.others]
        for rank, why in list(self.loop.suspects.items()):
            if self._watcher is not None:
                self._watcher.blame(self.link(rank).entry.member, ShoalError(why))
            self._blame(rank, why)
        if self._watcher is not None:
            self._doubt(self._watcher, peers)
            if deadline.left < deadline.budget / 2:
                for rank in missing:
                    waited = deadline.budget - deadline.left
                    self._watcher.late(
                        self.link(rank).entry.member, f"kept worker {self.rank} waiting for {waited:.0f} s"
                    )
        else:
            for peer in peers:
                self._check(peer, missing)
            self._check_silence(peers)
        if deadline.expired:
            suspects = "; ".join(self.link(rank).describe(now()) for rank in missing)
            raise DeadlineError(
                f"worker {self.rank} waited {deadline.budget:.0f} s for {suspects}; "
                "raise SHOAL_DEADLINE (seconds) if its step is really that long"
            )

    def _doubt(self, watch: ViewWatcher, peers: Sequence[LinkPeer]) -> None:
        """ViewEnded, if it has; else tell of whom nothing is heard."""
        if watch.disturbed:
            raise ViewEnded("the members change")
        seen = self.loop.turned
        doubted = [peer for peer in peers if peer.gone(seen) or peer.silent(seen, self.silence) is not None]
        watch.doubt({peer.entry.member: peer.gone(seen) for peer in doubted})

    def _check(self, peer: LinkPeer, missing: Sequence[int]) -> None:
        """PeerLost, if this peer cannot do its part any more."""
        seen = self.loop.turned  # not now: what came while the loop was away has not been heard yet
        if peer.bye is not None:
            if peer.bye.lost in self.view.others:
                self._blame(peer.bye.lost, f"{self.link(peer.bye.lost)} is lost, says {peer}")
            if peer.rank in missing:
                why = f"it waits for {peer}, which has {peer.bye.reason} after step {peer.step}"
                self._blame(peer.rank, f"{why}; all workers must make the same number of steps")
        elif peer.gone(seen):
            self._blame(peer.rank, f"{peer.describe(seen)}, is gone: nobody listens at {peer.entry.address}")

    def _check_silence(self, peers: Sequence[LinkPeer]) -> None:
        """PeerLost for the one that has been silent longest: others may have stopped because of it."""
        seen = self.loop.turned
        silent = [(s, p.rank) for p in peers if p.bye is None and (s := p.silent(seen, self.silence)) is not None]
        if silent:
            silence, rank = max(silent)
            self._blame(rank, f"{self.link(rank).describe(seen)}, has been silent for {silence:.1f} s")

    def _blame(self, rank: int, why: str) -> None:
        self._lost = rank
        raise PeerLost(f"worker {self.rank} stops: {why}")
