"""Sums tensors over links, between hosts: encrypted, in the background, and abortable in the middle.

The algorithm depends on size and dtype (see `algorithms/`): small tensors go directly to everybody (one latency, and
never worse between two workers), middle ones and half precision through reduce-scatter and all-gather (two
latencies), large ones round the ring. What leaves and the result are different tensors and the first is only read, so
that an exchange that a lost worker ended can be retried.
Do not use it inside one host: shared memory does the same without a socket.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.groups.links import LinkedGroup
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView
from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask
from shoal.sync.engine.algorithms.butterfly import ButterflyAllReduce
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.sync.engine.algorithms.reduce_scatter_gather import ReduceScatterGather
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.sync.engine.algorithms.tree import ChainAllReduce, StarAllReduce, TreeAllReduce, edge_tree
from shoal.sync.engine.algorithms.tuner import NOTHING, AlgorithmTuner
from shoal.sync.engine.base import LeaderSumEngine
from shoal.sync.engine.link_tasks import LinkTasks
from shoal.sync.sum_cost import MIDDLE, choose_way
from shoal.transport.tasks import CollectiveTask
from shoal.wire.bucket import BucketSpace

TUNED = 4 << 20
"""Bytes of all tensors beyond which latencies do not count: large ones take the ring, and nothing is tried."""


class LinkEngine(LinkTasks, LeaderSumEngine, MembershipListener):
    """Over the links of a group; tensors on the CPU."""

    def __init__(self, group: LinkedGroup, among: Sequence[int] | None = None, algorithm: str = "auto") -> None:
        """`algorithm`: one of ALGORITHMS for all tensors, the edges of a tree, or `auto`."""
        super().__init__(group, among)
        self.algorithm = algorithm
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._started = 0.0
        self._tuner: AlgorithmTuner | None = None

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        for space in spaces:
            if space.device.type != "cpu":
                raise UsageError(f"a bucket on {space.device} cannot travel over links; use --trusted for NCCL")
        self._pairs = [(torch.zeros(s.numel, dtype=s.dtype), torch.zeros(s.numel, dtype=s.dtype)) for s in spaces]
        self._arithmetic = [DtypeArithmetic(space.dtype) for space in spaces]
        self._start_tuning()
        return self._pairs

    def _start_tuning(self) -> None:
        """Try two algorithms for the tensors that may take either, if confirmations carry each worker's time to all."""
        sizes = [_bytes(leaving) for leaving, _ in self._pairs if leaving.element_size() > 2]
        # only elastic sessions confirm each exchange, and figures travel with the confirmation
        if self.algorithm != "auto" or not 0 < sum(sizes) <= TUNED or not self.group.session.elastic:
            return
        self._tuner = AlgorithmTuner(("auto", "ring" if max(sizes) <= MIDDLE else "owners"))
        self.group.session.listeners.add(self, ListenerStage.exchange)
        self.group.confirmation_listeners.append(self)

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        assert self._tuner is not None
        self._tuner.restart()
        self._started = 0.0

    def word(self) -> float:
        """Return how long the last exchange took once its last tensor had left; once for each exchange."""
        started, self._started = self._started, 0.0
        # a result may have arrived on the other thread without an end yet: the caller knows that all are there
        ended = [task.ended or now() for _, task in self._tasks.values()]
        return max(ended, default=0.0) - started if started else NOTHING

    def heard(self, words: Sequence[float | None]) -> None:
        assert self._tuner is not None
        ranks = self.group.mesh.view.ranks
        self._tuner.record([w for rank, w in zip(ranks, words, strict=True) if not self.among or rank in self.among])

    def prepare(self) -> None:
        super().prepare()
        if self._tuner is not None:
            self._tuner.begin_exchange()

    def start(self, index: int) -> None:
        self._started = now()
        self._submit(index, lambda: self._make_task(index))

    def _make_task(self, index: int) -> CollectiveTask:
        leaving, result = self._pairs[index]
        arithmetic = self._arithmetic[index]
        kind = choose_algorithm(leaving, self._size, self.algorithm)
        # both tuned algorithms add up in the same order, so trying changes no bit; DirectSum does not
        if self._tuner is not None and kind is not DirectSum and leaving.element_size() > 2:
            kind = choose_algorithm(leaving, self._size, self._tuner.algorithm)
        return kind(arithmetic.array(leaving), arithmetic.array(result), arithmetic)

    @property
    def _size(self) -> int:
        return self.group.mesh.view.size if self.among is None else len(self.among)

    def finish(self, index: int) -> None:
        self._wait(index)

    def wire_bytes(self, index: int) -> int:
        leaving, view = self._pairs[index][0], self.group.mesh.view
        ranks = view.ranks if self.among is None else list(self.among)
        place = ranks.index(view.rank) if view.rank in ranks else 0
        # by the usual algorithm: the other one that is tried sends as many bytes
        return choose_algorithm(leaving, self._size, self.algorithm).sent_bytes(_bytes(leaving), self._size, place)


ALGORITHMS: dict[str, type[SumTask]] = {
    "ring": RingAllReduce,
    "owners": ReduceScatterGather,
    "straight": DirectSum,
    "tree": TreeAllReduce,
    "chain": ChainAllReduce,
    "star": StarAllReduce,
    "butterfly": ButterflyAllReduce,
}
"""By the words of the plan term `allreduce(…)`."""


def choose_algorithm(leaving: Tensor, workers: int, wanted: str = "auto") -> type[SumTask]:
    """Return how a tensor is summed; by what all workers know, so that all choose alike."""
    way = choose_way(_bytes(leaving), leaving.element_size(), workers, wanted)
    return ALGORITHMS[way] if way in ALGORITHMS else edge_tree(way)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
