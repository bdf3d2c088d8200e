"""A worker's links to all its peers, as the training thread uses them.

Sockets belong to the communication thread (`io_loop`); this side submits tasks, waits, and decides when a wait fails.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from shoal.core.clock import Deadline, now
from shoal.core.errors import DeadlineError, PeerLost, ShoalError, ViewEnded
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.transport.endpoint import Book, BookEntry, LinkEndpoint, check_book
from shoal.transport.io_loop import IoLoop
from shoal.transport.job_priority import SHARE, JobPriority
from shoal.transport.messenger import Messenger
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import RateLimit
from shoal.transport.tasks import CollectiveTask, MeshView

LOOK = 0.1
"""Seconds between two checks, in a wait, whether the peers are alive."""
SILENCE = 10.0
"""Silence up to this many seconds is always forgiven: peers send every half second, but machines pause and links
break."""
# Seconds for what was sent to arrive when a run ends well; a peer that takes longer notices the end by itself.
FLUSH = 10.0
# Seconds for the communication thread to run a command: it never blocks, so this only bounds a bug or a frozen machine.
COMMAND = 30.0


class ViewWatcher(Protocol):
    """Membership, as a mesh uses it: tells whether the view has ended, and is told which peers are silent."""

    @property
    def disturbed(self) -> bool: ...

    def doubt(self, peers: Mapping[str, bool]) -> None:
        """Report the silent members by id, and whether their endpoints are closed."""

    def late(self, member: str, reason: str) -> None:
        """Report a member that keeps this worker waiting for too long."""

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        """Report a member that breaks the protocol; raise ViewEnded if the run can go on without it, else the error."""


class LinkMesh:
    """The links of one worker, used by one thread."""

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
        # A fork (a loader process) inherits the object but not the thread; closing there must do nothing.
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
        """Let `watcher` decide which members are lost; without one, a lost peer ends the run."""
        self._watcher = watcher
        self.loop.exchange.silence = None  # membership decides which member is lost, not the link

    @property
    def view(self) -> MeshView:
        return self.loop.view

    @property
    def generation(self) -> int:
        return self.loop.generation

    def link(self, rank: int) -> LinkPeer:
        """Return what is known of a peer, such as `link(2).out.estimate.rate`."""
        return self.loop.peers[rank]

    def wait_for_peers(self, seconds: float) -> None:
        """Wait until every peer has been heard."""
        deadline = Deadline.after(seconds)
        while missing := [rank for rank in self.view.others if self.link(rank).heard is None]:
            self._look_around(missing, deadline)
            threading.Event().wait(0.005)

    def submit(self, task: CollectiveTask, number: int | None = None) -> None:
        """Submit a task. All members submit the tasks of a channel in the same order, or give each its number."""
        task.number = self._next[task.channel] if number is None else number
        self._next[task.channel] = task.number + 1
        self.loop.call(lambda: self.loop.add(task))

    def wait(self, task: CollectiveTask, seconds: float) -> None:
        """Return when the task is done; raise its error, ViewEnded, PeerLost or DeadlineError."""
        looked = now()
        deadline, longest = Deadline.after(seconds), looked + SHARE * seconds
        self._waiting = (looked, task)
        try:
            while not task.done.wait(LOOK):
                before, looked = looked, now()
                if self._stands_back() and deadline.at < longest:  # the time another run takes is not the peers'
                    deadline = Deadline(deadline.at + looked - before, seconds)
                self._look_around(task.missing(), deadline)
            # The task failed because a new view aborted it; membership tells why, not the task's error.
            if task.error is not None and self._watcher is not None and self._watcher.disturbed:
                raise ViewEnded("the members change")
        finally:
            self._waiting = None
            if self._watcher is not None:
                # Doubts are about the peers of this wait. They end with it, or a finished wait would keep accusing.
                self._watcher.doubt({})
        if task.error is not None:
            if self._watcher is not None and task.culprit is not None:
                self._watcher.blame(self.link(task.culprit).entry.member, task.error)
            raise task.error

    def _stands_back(self) -> bool:
        """Return whether a member of the view lets another run go first; believed only where this run does, too."""
        priority = self.loop.chunk_sender.priority
        if priority is None:
            return False
        peers = [self.link(rank) for rank in self.view.others]
        return bool(priority.stands_back_for) or any(peer.state == WorkerState.standing_back for peer in peers)

    def set_priority(self, priority: JobPriority) -> None:
        """Let runs of this host that have less left to send go first."""
        self._command(lambda: self.loop.set_priority(priority))

    @property
    def priority(self) -> JobPriority | None:
        return self.loop.chunk_sender.priority

    def waiting(self) -> str:
        """Describe the current wait: `waiting 3.2 s for worker 2 (host b), last seen …`; empty if there is none."""
        waiting = self._waiting
        if waiting is None:
            return ""
        moment = now()
        suspects = "; ".join(self.link(rank).describe(moment) for rank in waiting[1].missing())
        return f"waiting {moment - waiting[0]:.1f} s for {suspects}"

    def abort(self, reason: str) -> None:
        """Fail all tasks with PeerLost. Their input arrays are unchanged."""
        self._command(lambda: self.loop.tasks.abort(PeerLost(f"worker {self.rank} stops: {reason}")))

    def leave(self, generation: int) -> None:
        """Release callers that wait in a view before `generation`; any thread may call this."""
        self.loop.call(lambda: self.loop.leave(generation, ViewEnded("the members change")))

    def set_peers(self, book: Book) -> None:
        """Replace the peers."""
        check_book(book)
        self._command(lambda: self.loop.set_peers(book))

    def add_peer(self, rank: int, entry: BookEntry) -> None:
        """Connect to a worker that is in no view yet, until the next `set_peers`."""
        self.set_peers({**self.loop.book, rank: entry})

    def remove_peer(self, rank: int) -> None:
        """Disconnect a worker that was added, and fail what waits for it; members of the view stay."""
        if rank not in self.view.ranks and rank in self.loop.book:
            self.set_peers({other: entry for other, entry in self.loop.book.items() if other != rank})

    def reform(self, generation: int, ranks: Sequence[int]) -> None:
        """Enter a view of `ranks`. Its generation must be higher than the last."""
        if generation <= self.generation or self.rank not in ranks or not set(ranks) <= {self.rank, *self.loop.peers}:
            raise ShoalError(
                f"worker {self.rank} cannot go from generation {self.generation} to {generation} with workers "
                f"{sorted(ranks)}; "
                "generations grow, and members are in the book"
            )
        self._command(lambda: self.loop.reform(generation, ranks))
        # All members number the tasks of a new view from 0, whatever each had submitted in the last.
        self._next.clear()
        self._lost = -1

    def close(self, reason: str = "ended") -> None:
        """Wait until all that was sent has arrived, say goodbye, and end the thread."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self.messenger.close()
        # After a loss the run is over; half a second lets the goodbye leave that names the lost worker.
        deadline = Deadline.after(FLUSH if self._lost < 0 else 0.5)
        self.loop.call(self.loop.acknowledge_at_once)
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
            if rank not in self.view.others:
                continue  # a newcomer, or one that was evicted: it is not heard any more, and no task waits for it
            if self._watcher is not None:
                self._watcher.blame(self.link(rank).entry.member, ShoalError(why))
            self._blame(rank, why)
        if self._watcher is not None:
            self._doubt(self._watcher, peers)
            # Half the deadline is left for the coordinator to evict a peer that is alive but does not take part.
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
        """Raise ViewEnded if the view has ended; else report the silent peers."""
        if watch.disturbed:
            raise ViewEnded("the members change")
        seen = self.loop.turned
        doubted = [peer for peer in peers if peer.gone(seen) or peer.silent(seen, self.silence) is not None]
        watch.doubt({peer.entry.member: peer.gone(seen) for peer in doubted})

    def _check(self, peer: LinkPeer, missing: Sequence[int]) -> None:
        """Raise PeerLost if this peer cannot do its part any more."""
        seen = self.loop.turned  # not the current time: what arrived since the loop's last turn is not read yet
        if peer.bye is not None:
            if peer.bye.lost in self.view.others:
                self._blame(peer.bye.lost, f"{self.link(peer.bye.lost)} is lost, says {peer}")
            if peer.rank in missing:
                why = f"it waits for {peer}, which has {peer.bye.reason} after step {peer.step}"
                self._blame(peer.rank, f"{why}; all workers must make the same number of steps")
        elif peer.gone(seen):
            self._blame(peer.rank, f"{peer.describe(seen)}, is gone: nobody listens at {peer.entry.address}")

    def _check_silence(self, peers: Sequence[LinkPeer]) -> None:
        """Raise PeerLost for the peer that has been silent longest; others may have stopped because of it."""
        seen = self.loop.turned
        silent = [(s, p.rank) for p in peers if p.bye is None and (s := p.silent(seen, self.silence)) is not None]
        if silent:
            silence, rank = max(silent)
            self._blame(rank, f"{self.link(rank).describe(seen)}, has been silent for {silence:.1f} s")

    def _blame(self, rank: int, why: str) -> None:
        self._lost = rank
        raise PeerLost(f"worker {self.rank} stops: {why}")
