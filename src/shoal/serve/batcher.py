"""The batcher: requests that wait for a model are computed together.

One batcher serves one version and lives on the event loop. While `width` batches are being computed, requests
wait in a bounded queue; the next batch takes as many of them, in order, as `BatchSizer` allows. Nothing waits for
company unless `delay` says so, and for a free core no longer than its batch takes. Urgent requests go before others
and, where the queue is full, take the place of the least urgent one. A request is refused at once when it could not be
answered in time, and dropped when its client is gone or its deadline has passed, so that overload costs no work that
nobody uses.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from shoal.serve.errors import DeadlinePassed, PredictFailed, RequestError, ServerBusy
from shoal.serve.sizing import BatchTimes, SizingPolicy
from shoal.serve.slots import ComputeSlots
from shoal.serve.stacking import split_outputs, stack_inputs
from shoal.serve.tensors import Tensors

NORMAL = 2
"""The level of requests that name none; 1 goes before them, larger ones come after. Shadow copies come last."""
LAST = 255
MOST_BATCHES = 1 << 16
"""Slots of a batcher that shares none: more than it computes at the same time."""

Execute = Callable[[Tensors], Awaitable[Tensors]]
"""Computes one batch, elsewhere than on the event loop."""


@dataclass(frozen=True)
class BatchSettings:
    """How requests of one model are gathered."""

    concurrency: int = 1
    """Batches that are computed at the same time."""
    queue: int = 1024
    """Samples that may wait."""
    delay: float = 0.0
    """Seconds a request may wait for others although the model is idle."""


@dataclass(eq=False)
class PendingRequest:
    """One request that waits."""

    inputs: Tensors
    rows: int
    deadline: float
    """Moments on the event loop's clock."""
    arrived: float
    measured: float
    """The same moment on the clock that measures."""
    answer: "asyncio.Future[Tensors]"
    level: int = NORMAL
    kind: tuple[tuple[str, str, tuple[int, ...]], ...] = field(init=False)
    """Requests of one kind can be stacked."""

    def __post_init__(self) -> None:
        self.kind = tuple((name, each.dtype.str, each.shape[1:]) for name, each in sorted(self.inputs.items()))


class BatchObserver(Protocol):
    """Is told of each batch: how many requests and samples, how long they waited and computed, and if it failed."""

    def batch_done(self, requests: int, rows: int, waited: float, seconds: float, failed: bool) -> None: ...


class RequestBatcher:
    """Used on one event loop."""

    def __init__(
        self,
        execute: Execute,
        sizer: SizingPolicy,
        settings: BatchSettings,
        observer: BatchObserver,
        clock: Callable[[], float] | None = None,
        slots: ComputeSlots | None = None,
        width: Callable[[], int] | None = None,
    ) -> None:
        """`clock` measures how long batches take; without one it is the event loop's, which may be coarse.

        `slots` are shared with the batchers of other models; without them every model computes when it likes.
        `width` says how many batches may be computed at the same time; without it the settings do.
        """
        self._width = width or (lambda: settings.concurrency)
        self._execute, self.sizer, self._settings, self._observer = execute, sizer, settings, observer
        self._clock = clock or asyncio.get_running_loop().time
        self._slots = slots or ComputeSlots(MOST_BATCHES)
        self._core_timer: asyncio.TimerHandle | None = None
        self._has_waited = False
        self._queue: deque[PendingRequest] = deque()
        self._running = self._running_rows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._times = BatchTimes()
        self.queued = 0
        """Samples that wait."""

    async def submit(self, inputs: Tensors, rows: int, deadline: float, level: int = NORMAL) -> Tensors:
        """The outputs for these inputs, which are of `rows` samples. Cancelled: the request is dropped."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._check_room(rows, deadline - now, level)
        request = PendingRequest(inputs, rows, deadline, now, self._clock(), loop.create_future(), level)
        self._enqueue(request)
        # A timer for each request: its client hears in time even while a long batch is computed.
        alarm = loop.call_at(deadline, self._expire, request)
        self._pump()
        try:
            return await request.answer
        finally:
            alarm.cancel()

    def _enqueue(self, request: PendingRequest) -> None:
        """Behind all that are as urgent."""
        # From the end, because most requests are equally urgent and belong there.
        place = len(self._queue)
        while place and self._queue[place - 1].level > request.level:
            place -= 1
        self._queue.insert(place, request)
        self.queued += request.rows

    def expected_wait(self, rows: int = 0, level: int = LAST) -> float:
        """Seconds until a request that came now would be answered, by the times of the last batches."""
        before = self.queued if level >= LAST else sum(each.rows for each in self._queue if each.level <= level)
        full, rest = divmod(before + rows, self.sizer.rows)
        ahead = full * self._times.predict(self.sizer.rows) + (self._times.predict(rest) if rest else 0.0)
        return self._times.predict(self._running_rows) * bool(self._running) + ahead / self._width()

    def _check_room(self, rows: int, left: float, level: int) -> None:
        if left <= 0:
            raise DeadlinePassed("the request's time was over before it came to the model; give it more")
        # Before anything is dropped for it: a request that would be late anyway must not cost another its place.
        wait = self.expected_wait(rows, level)
        if self._is_full(rows):
            less_urgent = sum(each.rows for each in self._queue if each.level > level)
            # An empty queue takes a request of any size, or one that is larger than the queue could never be answered.
            if self.queued - less_urgent and self.queued - less_urgent + rows > self._settings.queue:
                raise ServerBusy(
                    f"{self.queued} samples wait already, {self._settings.queue} may; try again later", wait
                )
            self._drop_less_urgent(rows, level)
        # With an empty queue it is computed whatever is expected, so that a wrong expectation is found out.
        if self.queued and wait > left:
            raise ServerBusy(f"the answer would take {wait:.3f} s and the request gives {left:.3f} s", wait - left)

    def _is_full(self, rows: int) -> bool:
        return bool(self.queued) and self.queued + rows > self._settings.queue

    def _drop_less_urgent(self, rows: int, level: int) -> None:
        """From the end, until a request of `rows` has room."""
        while self._is_full(rows) and self._queue[-1].level > level:
            dropped = self._queue.pop()
            self.queued -= dropped.rows
            if not dropped.answer.done():
                words = "a more urgent request took its place in the queue; try again later"
                dropped.answer.set_exception(ServerBusy(words, self.expected_wait()))

    def _expire(self, request: PendingRequest) -> None:
        if not request.answer.done():
            request.answer.set_exception(DeadlinePassed("the model did not answer within the request's time"))

    def _pump(self) -> None:
        """Start as many batches as may run; nothing if the first request may still wait for company."""
        while self._running < self._width():
            self._drop_done()
            self._drop_late()
            if not self._queue or self._waits_for_company() or self._waits_for_core():
                return
            self._start(self._take())

    def _drop_done(self) -> None:
        while self._queue and self._queue[0].answer.done():
            self.queued -= self._queue.popleft().rows

    def _drop_late(self) -> None:
        """Drop what would be answered too late: computing it would make those behind it late as well.

        The last one is computed whatever is expected, so that a wrong expectation is found out.
        """
        done = asyncio.get_running_loop().time() + self._times.predict(min(self.sizer.rows, self.queued))
        while len(self._queue) > 1 and (self._queue[0].deadline < done or self._queue[0].answer.done()):
            request = self._queue.popleft()
            self.queued -= request.rows
            self._expire(request)

    def _waits_for_company(self) -> bool:
        if not self._settings.delay or self.queued >= self.sizer.rows:
            return False
        loop = asyncio.get_running_loop()
        due = self._queue[0].arrived + self._settings.delay
        if loop.time() >= due:
            return False
        if self._timer is None or self._timer.cancelled() or self._timer.when() < loop.time():
            self._timer = loop.call_at(due, self._pump)
        return True

    def _waits_for_core(self) -> bool:
        """No longer than the batch takes: a model that is slow must not hold up a quick one for its whole batch."""
        expected = self._times.predict(min(self.sizer.rows, self.queued))
        # Nothing is expected before a first batch was timed; then there is no bound for the wait.
        if self._slots.is_free or self._has_waited or not expected:
            return False
        if self._core_timer is None:
            self._core_timer = asyncio.get_running_loop().call_later(expected, self._start_without_slot)
        self._slots.wake_later(self._pump)
        return True

    def _start_without_slot(self) -> None:
        self._has_waited = True
        self._pump()

    def _take(self) -> list[PendingRequest]:
        """The next batch: requests from the front of the queue, of one kind and together within the limit."""
        limit, batch = self.sizer.rows, [self._queue.popleft()]
        rows = batch[0].rows
        while self._queue:
            first = self._queue[0]
            if not first.answer.done():
                # Ends the batch instead of passing the request over: those behind it must not overtake it.
                if first.kind != batch[0].kind or rows + first.rows > limit:
                    break
                batch.append(first)
                rows += first.rows
            else:
                self.queued -= first.rows
            self._queue.popleft()
        self.queued -= rows
        return batch

    def _start(self, batch: list[PendingRequest]) -> None:
        if self._core_timer is not None:
            self._core_timer.cancel()
        self._core_timer, self._has_waited = None, False
        self._slots.take()
        self._running += 1
        self._running_rows = sum(each.rows for each in batch)
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: list[PendingRequest]) -> None:
        try:
            await self._compute(batch)
        finally:
            self._running -= 1
            self._slots.release()  # first those that wait for a core, so that models take turns
            self._pump()

    async def _compute(self, batch: list[PendingRequest]) -> None:
        rows, began, failed = sum(each.rows for each in batch), self._clock(), False
        try:
            outputs = await self._execute(stack_inputs([each.inputs for each in batch]))
            _hand_out(batch, outputs)
        except Exception as error:  # noqa: BLE001  (models run code of users)
            failed = True
            if len(batch) > 1:
                await self._one_by_one(batch)  # one bad request must not fail those it met in the batch
            else:
                _refuse(batch[0], error)
        seconds = self._clock() - began
        # A batch that failed early would make the model look fast.
        if not failed:
            self.sizer.observe(rows, seconds)
            self._times.observe(rows, seconds)
        self._observer.batch_done(len(batch), rows, sum(began - each.measured for each in batch), seconds, failed)

    async def _one_by_one(self, batch: list[PendingRequest]) -> None:
        for each in batch:
            if each.answer.done():
                continue
            try:
                _hand_out([each], await self._execute(each.inputs))
            except Exception as error:  # noqa: BLE001  (as above)
                _refuse(each, error)

    @property
    def retry_after(self) -> int:
        """Whole seconds for the header of a refusal."""
        return max(1, ceil(self.expected_wait()))

    async def drain(self, seconds: float) -> None:
        """Wait for what is being computed; the caller sends nothing any more."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


def _hand_out(batch: list[PendingRequest], outputs: Tensors) -> None:
    """Give each request its rows."""
    for request, share in zip(batch, split_outputs(outputs, [each.rows for each in batch]), strict=True):
        if not request.answer.done():
            request.answer.set_result(share)


def _refuse(request: PendingRequest, error: Exception) -> None:
    if request.answer.done():
        return
    if not isinstance(error, RequestError):
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        error = PredictFailed(f"the model raised {type(error).__name__}: {said}")
    request.answer.set_exception(error)
