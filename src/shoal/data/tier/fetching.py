"""Which data server a worker asks for which batch, and what it does when none answers.

    next batches ── asked ahead, of the server with the fewest requests ──▶ servers
    the first    ◀─ in order; if it is overdue: another server, then this worker itself

Indices come from the worker, so a lost server loses nothing and a batch that comes twice counts once. A server is
overdue by what batches have taken so far; it is asked again once it says anything.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.data.tier.batch_format import DamagedBatchError, decode_batch, encode_batch
from shoal.data.tier.fetch_totals import FetchTotals
from shoal.data.tier.messages import BatchAnswer, BatchRequest, decode_answer, encode_head
from shoal.data.tier.preparing import BatchPreparer, plain_indices
from shoal.data.tier.raising import is_equal, prepare_here, raise_answer
from shoal.data.tier.server_links import BatchLinks, Frame, LinkEvent
from shoal.data.turn import PassKey

AHEAD = 2
"""Requests of a worker at each server: one is prepared while the other's batch travels."""
START, FIRST, LEAST = 5.0, 5.0, 1.0
"""Seconds: until the first server is there; for its first batch; and for any other, beside what batches take."""
SLACK = 2.0
LOOK = 0.5
MOST_LINES = 20


@dataclass(frozen=True)
class FetchedLoader:
    """A joined loader as the fetcher knows it."""

    number: int
    preparer: BatchPreparer
    ahead: int = AHEAD


@dataclass
class PendingBatch:
    """A batch that the script has not got yet."""

    number: int
    loader: FetchedLoader
    key: PassKey
    indices: Any
    asked: dict[int, float] = field(default_factory=dict)
    """Server -> when."""
    source: int | None = None
    """The server whose answer this is."""
    answer: BatchAnswer | None = None
    batch: Any = None

    @property
    def frames(self) -> list[Frame]:
        """The request."""
        items = self.loader.preparer.items
        key = self.key
        head = BatchRequest(self.number, self.loader.number, key.seed, key.epoch, key.number, items)
        return [encode_head(head), *encode_batch(self.indices)]


class BatchFetcher:
    """Of one worker, for all its loaders; used by its training thread."""

    def __init__(
        self, links: BatchLinks, warn: Callable[[str], None], workers: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = now,
    ) -> None:  # fmt: skip
        """`workers`: how many share the servers."""
        self._links, self._say, self._workers, self._clock = links, warn, workers, clock
        self.totals = FetchTotals(len(links))
        self._number = 0
        self._pending: dict[int, PendingBatch] = {}
        self._up: set[int] = set()
        self._late: set[int] = set()
        """Those that owe an answer for too long."""
        self._unfit: set[tuple[int, int]] = set()
        """(server, loader): it cannot prepare batches of this loader."""
        self._compared: set[tuple[int, int]] = set()
        self._load = [0] * len(links)
        self._seconds: list[float] = []
        self._starts_until = clock() + START
        self._lines = 0
        self._is_alone = False

    def fetch(self, loader: FetchedLoader, key: PassKey, chosen: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of the `chosen` indices, in order."""
        queue: deque[PendingBatch] = deque()
        try:
            while True:
                self._take(self._links.poll(0))
                self._fill(queue, loader, key, chosen)
                if not queue:
                    return
                self._await(queue[0])
                yield self._finish(queue.popleft())
        finally:
            # the script has left the pass: answers that come later find nothing, and are dropped
            for each in queue:
                self._pending.pop(each.number, None)

    def _fill(self, queue: deque[PendingBatch], loader: FetchedLoader, key: PassKey, chosen: Iterator[Any]) -> None:
        while len(queue) < loader.ahead * max(1, len(self._fit(loader))):
            try:
                indices = plain_indices(next(chosen))
            except StopIteration:
                break
            self._number += 1
            queue.append(PendingBatch(self._number, loader, key, indices))
            self._pending[self._number] = queue[-1]
        self._ask_open(queue)

    def _ask_open(self, queue: Sequence[PendingBatch]) -> None:
        """Ask for what no server is at that can be expected to answer."""
        for each in queue:
            if each.answer is None and not self._expected(each) and (other := self._other(each)) is not None:
                self._ask(each, other)

    def _fit(self, loader: FetchedLoader) -> set[int]:
        return {server for server in self._up - self._late if (server, loader.number) not in self._unfit}

    def _expected(self, batch: PendingBatch) -> set[int]:
        return self._fit(batch.loader) & batch.asked.keys()

    def _other(self, batch: PendingBatch) -> int | None:
        others = self._fit(batch.loader) - batch.asked.keys()
        # the same order on all workers would load the first server: they begin at different ones by their numbers
        turn = batch.number % len(self._links)
        return min(others, key=lambda server: (self._load[server], (server + turn) % len(self._links)), default=None)

    def _ask(self, batch: PendingBatch, server: int) -> None:
        batch.asked[server] = self._clock()
        self._load[server] += 1
        self._links.send(server, batch.frames)

    def _await(self, first: PendingBatch) -> None:
        """Until the batch is here."""
        began = self._clock()
        while first.answer is None:
            self._ask_open([first])
            left = self._patience(first)
            if left > 0:
                self._take(self._links.poll(min(left, LOOK)))
                continue
            self._give_up(first)
            if self._other(first) is None:
                self._prepare(first)
        self.totals.waited += self._clock() - began

    def _patience(self, batch: PendingBatch) -> float:
        """Seconds to wait on for the servers that were asked; while none has come up yet, for one."""
        expected = self._expected(batch)
        if not expected:
            # only before the first batch: until then the servers may still be starting
            waits = not self._up and not self._late and self.totals.received == 0 and not self._is_alone
            return self._starts_until - self._clock() if waits else 0.0
        # the requests of all workers may be before this one at the server
        usual = LEAST + SLACK * self._usual * batch.loader.ahead * max(1, self._workers())
        granted = usual if self._seconds else max(FIRST, usual)
        return max(batch.asked[server] for server in expected) + granted - self._clock()

    @property
    def _usual(self) -> float:
        """Seconds that a batch has taken to prepare, of the last few the longest."""
        return max(self._seconds, default=0.0)

    def _give_up(self, batch: PendingBatch) -> None:
        for server in sorted(self._expected(batch)):
            self._late.add(server)
            self.totals.overdue += 1
            asked = self._clock() - batch.asked[server]
            self._warn(f"data server {server} has not answered for {asked:.1f} s; its batches are prepared by others")

    def _prepare(self, batch: PendingBatch) -> None:
        if not self._is_alone:
            self._warn("no data server answers: this worker prepares its batches itself until one does")
            self._is_alone = True
        batch.batch = prepare_here(batch.loader.preparer, batch.key, batch.indices)
        batch.answer = BatchAnswer(batch.number)
        self.totals.local += 1

    def _finish(self, batch: PendingBatch) -> Any:
        """Return the batch; raise what its server has reported instead."""
        self._pending.pop(batch.number, None)
        assert batch.answer is not None
        if batch.source is not None:
            raise_answer(batch.answer, f"data server {batch.source}")
            self._compare(batch)
        return batch.batch

    def _compare(self, batch: PendingBatch) -> None:
        """Prepare the first batch of every server here too: it may have another dataset than this worker."""
        known = (batch.source or 0, batch.loader.number)
        if known in self._compared:
            return
        self._compared.add(known)
        try:
            own = batch.loader.preparer.prepare(batch.key, batch.indices)
        except Exception as error:  # noqa: BLE001  (a machine that only trains may have no data at all)
            cause = error.__cause__ or error
            self._warn(
                f"this worker cannot prepare batches itself ({type(cause).__name__}: {cause}): it needs a server"
            )
            return
        if not is_equal(own, batch.batch):
            self._warn(
                f"data server {batch.source} prepares the samples {str(batch.indices)[:60]} otherwise than this worker "
                "would: the dataset differs there, or draws random numbers that Shoal does not seed; see docs/data.md"
            )

    def _take(self, events: Sequence[LinkEvent]) -> None:
        for event in events:
            server = event.server
            if event.kind == "up":
                self._up.add(server)
                self._late.discard(server)
                self._unfit = {(other, loader) for other, loader in self._unfit if other != server}
            elif event.kind == "down":
                self._lose(server)
            else:
                self._hear(server, event.frames)

    def _lose(self, server: int) -> None:
        if server in self._up:
            self._warn(f"data server {server} is gone; its batches are prepared by others")
            self.totals.lost += 1
        self._up.discard(server)
        self._late.discard(server)
        # what it owed is asked of others
        self._load[server] = 0
        for batch in self._pending.values():
            batch.asked.pop(server, None)

    def _hear(self, server: int, frames: Sequence[Frame]) -> None:
        self._load[server] = max(0, self._load[server] - 1)
        self._late.discard(server)
        try:
            if len(frames) != 3:
                raise DamagedBatchError(f"{len(frames)} parts instead of 3")
            answer = decode_answer(bytes(frames[0]))
            batch = self._pending.get(answer.number)
            if batch is None or batch.answer is not None or server not in batch.asked:
                return  # another was faster, or the script has left the pass
            found = decode_batch(bytes(frames[1]), memoryview(frames[2])) if answer.outcome == "batch" else None
        except (msgspec.MsgspecError, UnicodeDecodeError, DamagedBatchError) as error:
            self._up.discard(server)  # until it is connected anew
            self._warn(f"data server {server} has sent what is no batch: {error}; it is not asked any more")
            return
        if answer.outcome == "unknown":
            batch.asked.pop(server)
            if (server, batch.loader.number) in self._unfit:
                return
            self._unfit.add((server, batch.loader.number))
            self._warn(f"data server {server} cannot serve loader {batch.loader.number}: {answer.text}")
            return
        batch.answer, batch.batch, batch.source = answer, found, server
        self._seconds = [*self._seconds[-15:], answer.seconds]
        self._is_alone = False
        self.totals.count(server, sum(memoryview(frame).nbytes for frame in frames))

    def _warn(self, text: str) -> None:
        self._lines += 1
        # a server that comes and goes must not fill the record
        if self._lines <= MOST_LINES:
            self._say(text)


def refuse_servers(kind: str) -> UsageError:
    """Why a loader's batches cannot be prepared by data servers."""
    return UsageError(
        f"--data-servers with a loader of {kind}: servers prepare batches by the indices of their samples, and it has "
        "none; give a DataLoader of a map-style Dataset, or leave --data-servers out"
    )
