"""Hosts with several workers each: add up inside each host first, then between the hosts, one stream per host.

    worker 0 ─┐ shared memory                 shared memory ┌─ worker 2
    worker 1 ─┴─> leader 0 ──── links ──── leader 2 <───────┴─ worker 3      or servers in the place of links

    full[i][s] = n      the tensor i of slot s of this host is full for the n-th time
    summed[i][s] = n    the leader in slot s has written the sum over all hosts
    read[i][s] = n      slot s reads no more (see slot_flags.py)

The first member on a host leads it; links carry 2 (h-1)/h of one worker's bytes for h hosts, however many workers each
has; to and from servers go the bytes of one worker for each host. A worker that is alone on its host leads itself and
uses no shared memory. Hierarchical all-reduce: Jia et al., "Highly scalable deep learning training system with mixed
precision", 2018; two levels of servers: Chen et al., "MXNet", 2015. Payloads of codecs go between all workers
(link_payloads.py). Do not use it where no host can have several workers: links.py and sum_engine.py do the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.groups.flag_waiter import FlagWaiter
from shoal.groups.host_workers import HostSharing
from shoal.groups.links import LinkedGroup
from shoal.sync.engine.base import AllReduceEngine, LeaderSumEngine
from shoal.sync.engine.links import LinkEngine
from shoal.sync.engine.slot_flags import SlotFlags, flag_bytes, flag_rows, round_to_lines, tensor_at
from shoal.sync.price import NetworkEstimate
from shoal.wire.bucket import BucketSpace


class HierarchicalEngine(AllReduceEngine):
    """For a group over links whose workers know who else is on their host."""

    retryable = True

    def __init__(self, group: LinkedGroup, algorithm: str = "auto", *, between: LeaderSumEngine | None = None) -> None:
        """`between`: what sums between the leaders; links, by this algorithm, unless given."""
        assert group.local is not None
        self.group = group
        self._links = between or LinkEngine(group, algorithm=algorithm)
        self._choose_leaders()
        self._host = HostSums(group.local) if len(group.local.places) > 1 else None
        """None: nobody else can be on this host."""
        self._queue: list[int] = []
        """Tensors that this leader has still to add up, in order."""

    @property
    def _leads(self) -> bool:
        return self._host is None or self._host.leads

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        self._between = self._links.open(spaces)
        return self._between if self._host is None else self._host.open(spaces)

    def prepare(self) -> None:
        if self._host is not None:
            self._host.prepare()
        self._choose_leaders()
        self._links.prepare()
        self._queue = []

    def _choose_leaders(self) -> None:
        """Members may have changed since the last exchange, so each one asks anew who leads."""
        self._links.among = self.group.leaders

    def start(self, index: int) -> None:
        if self._host is None:
            self._links.start(index)
            return
        self._host.flags.start(index)
        if self._leads:
            self._queue.append(index)
            self.progress()

    def progress(self) -> None:
        while self._host is not None and self._queue and self._host.flags.is_full(self._queue[0]):
            self._send_host_sum(self._host, self._queue.pop(0))

    def _send_host_sum(self, host: "HostSums", index: int) -> None:
        self._between[index][0].copy_(host.add_up(index))
        self._links.start(index)

    def finish(self, index: int) -> None:
        if self._host is None:
            self._links.finish(index)
            return
        # in order, because sums between hosts must start in the same order everywhere
        while index in self._queue:
            self._host.flags.await_full(self._queue[0])
            self._send_host_sum(self._host, self._queue.pop(0))
        if self._leads:
            self._links.finish(index)
            self._host.publish(index, self._between[index][1])
        self._host.take(index)

    def set_priorities(self, priorities: Sequence[int]) -> None:
        self._links.set_priorities(priorities)

    def is_done(self, index: int) -> bool:
        if self._host is None or self._leads:
            return self._links.is_done(index)
        return self._host.is_published(index)

    def wire_bytes(self, index: int) -> int:
        return self._links.wire_bytes(index) if self._leads else 0

    def arrival_time(self, index: int) -> float | None:
        return self._links.arrival_time(index) if self._leads else None

    def estimate_network(self) -> NetworkEstimate:
        return self._links.estimate_network()

    def is_complete(self) -> bool:
        if self._host is None:
            return self._links.is_complete()
        # `has_result`, not `is_done`: a task that failed is done, too
        has_result = self._links.has_result if self._leads else self._host.is_published
        return all(has_result(index) for index in list(self._host.flags.started))

    def retry(self) -> None:
        if self._host is None:
            self._choose_leaders()
            self._links.retry()
            return
        self._host.retry()
        # what this worker had sent as a leader was the sum of other members; and another may lead now
        self._links.abandon()
        self._choose_leaders()
        # a follower of the old view may lead this one: every copy is in shared memory, so it adds up from there
        self._queue = list(self._host.flags.started) if self._leads else []
        self.progress()

    def finish_locally(self) -> None:
        """Nothing to do: every result has arrived already."""

    def abandon(self) -> None:
        self._links.abandon()
        if self._host is not None:
            self._host.flags.abandon()
        self._queue = []


class HostSums:
    """One host's shared memory: every worker's tensors, and the sums over all hosts as each leader writes them.

    Each leader writes sums into memory of its own and every worker copies them out, so a leader that was given up and
    wakes up changes nothing that is read.
    """

    def __init__(self, group: HostSharing) -> None:
        self.group, self.flags = group, SlotFlags(group)
        waiter = group.patience
        self._leader = FlagWaiter(waiter.board, waiter.slot, waiter.seconds, waiter.session)
        """Waits for the leader of the exchange under way."""

    @property
    def leads(self) -> bool:
        """Whether this worker sends its host's sums in the exchange under way."""
        return (self.flags.members or self.group.members)[0] == self.group.slot

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        places, slots = self.group.places, max(self.group.places) + 1
        sizes = [round_to_lines(space.numel * space.dtype.itemsize) for space in spaces]
        at = flag_bytes(3, len(spaces), slots)
        memory = self.group.region(max(at + 2 * len(places) * sum(sizes), 1))
        full, read, self._summed = flag_rows(memory, 3, len(spaces), slots)
        self.flags.open(full, read)
        self._copies, self._sums = list[dict[int, Tensor]](), list[dict[int, Tensor]]()
        for space, size in zip(spaces, sizes, strict=True):
            for kind in (self._copies, self._sums):
                offsets = enumerate(places)
                kind.append({slot: tensor_at(memory, at + n * size, space.dtype, space.numel) for n, slot in offsets})
                at += len(places) * size
        # private results: the script clips gradients in place, which must not happen in memory that others read
        self._own = [torch.zeros(space.numel, dtype=space.dtype) for space in spaces]
        return [(copies[self.group.slot], own) for copies, own in zip(self._copies, self._own, strict=True)]

    def prepare(self) -> None:
        self.flags.prepare()
        self._leader.wait_for(self.flags.members[:1])

    def retry(self) -> None:
        self.flags.retry()
        self._leader.wait_for(self.flags.members[:1])

    def add_up(self, index: int) -> Tensor:
        """Return the sum over this host's members; half precision in float32, so it is rounded once."""
        copies = [self._copies[index][slot] for slot in self.flags.members]
        half = copies[0].dtype in (torch.float16, torch.bfloat16)
        total = copies[0].float() if half else copies[0].clone()
        for copy in copies[1:]:
            total += copy
        return total

    def publish(self, index: int, total: Tensor) -> None:
        """As the leader: give the sum over all hosts to the others of this host."""
        self._sums[index][self.group.slot].copy_(total)
        self.group.patience.publish(self._summed[index], self.flags.number(index))

    def is_published(self, index: int) -> bool:
        return self._leader.reached(self._summed[index], self.flags.number(index))

    def take(self, index: int) -> None:
        """Copy what the leader has published; its memory may change again once all have read it."""
        if not self.leads:
            self._leader.until(self._summed[index], self.flags.number(index))
        self._own[index].copy_(self._sums[index][self.flags.members[0]])
        self.flags.mark_read(index)
