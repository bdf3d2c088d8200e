"""A run whose models another tool trains together; loaders, seeds, times and the record stay Shoal's own."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from shoal.bench.peers.base import BenchPeer, PeerCost, PeerPlace
from shoal.core.errors import UsageError
from shoal.data.allocate.leased import LeaseQueue
from shoal.data.loader import ShardedLoader
from shoal.data.remaining import FRESH, Left
from shoal.data.source.base import BatchSource, LoaderStep
from shoal.data.turn import PassKey
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.train.members import JoinedMembers
from shoal.train.run import Run

PLAN = "alone, every(1)"
"""The plan of a peer's run: Shoal exchanges nothing, because the peer does."""


class PeerRun(Run):
    """`join` deals the loader and hands the models to the peer."""

    def __init__(self, context: WorkerContext, plan: Plan, peer: BenchPeer) -> None:
        super().__init__(context, plan)
        self.peer = peer
        peer.open(PeerPlace(self.rank, self.size, self.dir, context.group.seconds))

    def join(self, *things: Any, loss: str = "mean") -> Any:
        if loss != "mean":
            raise UsageError(f"join(loss={loss!r}): peers average gradients; give them a loss that is a mean")
        results = super().join(*things)
        joined = self._together.joined[-1]
        _check(joined.members)
        cost = PeerCost(joined.synchronizer.spent, joined.exchange)
        self.peer.attach(joined.members.models, joined.members.optimizers, cost)
        return results

    def _welcome(self, thing: Any) -> Any:
        welcomed = super()._welcome(thing)
        # Wrapped, because other tools wait for a worker that has no sample.
        if isinstance(welcomed, ShardedLoader):
            welcomed._source = EvenSource(welcomed._source)
        return welcomed

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        with super().accumulate(), self.peer.quiet():
            yield

    def close(self) -> None:
        ended = self._closed
        super().close()
        # Closed by the script and again at its end; the peer is closed once.
        if not ended:
            self.peer.close()


class EvenSource:
    """A source without the step in which some worker has no sample: the others would wait for it."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    lease_batch = None

    def steps(self, turn: PassKey, left: Left = FRESH, leases: LeaseQueue | None = None) -> Iterator[LoaderStep]:
        return (step for step in self._source.steps(turn, left) if 0 not in step.counts)

    @property
    def items(self) -> int | None:
        return self._source.items

    @property
    def drops(self) -> int:
        return self._source.drops

    def names(self, turn: PassKey, places: Iterable[int]) -> list[Any]:
        return self._source.names(turn, places)

    def __len__(self) -> int:
        return len(self._source)


def _check(members: JoinedMembers) -> None:
    owned = {id(parameter) for model in members.models for parameter in model.parameters()}
    for name, parameter in zip(members.names, members.parameters, strict=True):
        if id(parameter) not in owned:
            raise UsageError(f"parameter {name!r} belongs to no joined model, and peers train models; join its module")
