"""The exchange by pairs, and its engines: in one host's memory and over links.

After log2 p steps a worker holds something of everybody. Where p is no power of two, a worker whose partner would be
beyond the last place keeps what it has in that step; contributions then take a few steps more to reach everybody.
"""

from dataclasses import dataclass

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.algorithms.pair import PairSum, find_partner
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.engine.links import LinkEngine
from shoal.sync.engine.shared_memory import CHUNK, Part, SharedMemoryEngine
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.observer import ExchangeObserver
from shoal.transport.tasks import CollectiveTask


@dataclass
class PairSchedule:
    """`step`: of mixing, counted since all replicas were equal; None: the exchange is that of all workers."""

    step: int | None = None

    def partner_of(self, place: int, workers: int) -> int | None:
        """The place of the partner in this step; None for a worker that has none."""
        return None if self.step is None else find_partner(self.step, place, workers)


class SharedMemoryPairs(SharedMemoryEngine):
    """Adds up a pair's tensors in one host's memory. It waits until all workers have written theirs."""

    def __init__(self, group: SharedGroup, schedule: PairSchedule) -> None:
        super().__init__(group)
        self._schedule = schedule

    def _sums_all_of(self, index: int) -> bool:
        return self._schedule.step is not None or super()._sums_all_of(index)

    def _parts_of(self, index: int) -> list[Part]:
        if self._schedule.step is None:
            return super()._parts_of(index)
        members = self.flags.members
        place = members.index(self.group.slot)
        partner = self._schedule.partner_of(place, len(members))
        # the lower place first, so that both add up the same way
        pair = [members[each] for each in sorted({place, place if partner is None else partner})]
        copies, result = [self._copies[index][slot] for slot in pair], self._results[index][self.group.slot]
        cuts = [slice(at, at + CHUNK) for at in range(0, result.numel(), CHUNK)]
        return [([copy[cut] for copy in copies], [result[cut]]) for cut in cuts]


class LinkPairs(LinkEngine):
    """Adds up a pair's tensors over the link between the two: each sends its own once, whatever the number of hosts."""

    def __init__(self, group: LinkedGroup, schedule: PairSchedule) -> None:
        super().__init__(group)
        self._schedule = schedule

    def _start_tuning(self) -> None:
        """The few sums of all workers are not worth it."""

    def _make_task(self, index: int) -> CollectiveTask:
        if self._schedule.step is None:
            return super()._make_task(index)
        leaving, result = self._pairs[index]
        arithmetic = self._arithmetic[index]
        return PairSum(arithmetic.array(leaving), arithmetic.array(result), arithmetic, self._schedule.step)

    def wire_bytes(self, index: int) -> int:
        view, leaving = self.group.mesh.view, self._pairs[index][0]
        if self._schedule.step is None:
            return super().wire_bytes(index)
        has_partner = self._schedule.partner_of(view.place, view.size) is not None
        return leaving.numel() * leaving.element_size() * has_partner


class PairExchange(AllReduceExchange):
    """Sums over the pairs of its `schedule`, or over all workers."""

    def __init__(self, group: WorkerGroup, observer: ExchangeObserver | None = None) -> None:
        self.schedule = PairSchedule()
        super().__init__(group, lambda device: _engine_for(group, self.schedule, device), observer)


def _engine_for(group: WorkerGroup, schedule: PairSchedule, device: str) -> AllReduceEngine:
    if device != "cpu":
        raise UsageError(f"mix exchanges parameters in the host's memory, and these are on {device}; write allreduce")
    if isinstance(group, SharedGroup):
        return SharedMemoryPairs(group, schedule)
    if isinstance(group, LinkedGroup):
        return LinkPairs(group, schedule)
    raise UsageError(
        "mix needs workers of one host, or links between hosts; start it with shoal run and without --trusted, or "
        "write allreduce"
    )
