"""An exchange of one worker whose results are not there until they are waited for: what is read too early is NaN."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.core.events import RunEvent, WarningRaised
from shoal.groups.base import SingleWorkerGroup
from shoal.membership.session import FixedSession
from shoal.sync.batch_tag import BatchTag
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.train.joined import JoinedModels
from shoal.train.members import sort_members
from shoal.train.progress import StepProgress
from shoal.train.step_transaction import StepTransaction
from shoal.wire.bucket import BucketPlan, GradientBucket


class InFlight(GradientExchange):
    """Keeps what leaves, and writes in `events` what happens."""

    weight = 1.0
    peers = (1,)
    session = FixedSession(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.priorities: Sequence[int] = ()

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        self.buckets = [
            GradientBucket(p, *(torch.zeros(p.space.numel, dtype=p.space.dtype) for _ in range(2)))
            for p in plans.values()
        ]
        return dict(zip(plans, self.buckets, strict=True))

    def start(self, index: int) -> None:
        self.buckets[index].seal(self.weight)
        self.buckets[index].result.fill_(float("nan"))
        self.events.append(f"start {index}")

    def advance(self) -> None:
        pass

    def finish(self, index: int) -> None:
        self.buckets[index].result.copy_(self.buckets[index].flat)
        self.events.append(f"finish {index}")

    def set_priorities(self, priorities: Sequence[int]) -> None:
        self.priorities = list(priorities)

    def gather(self, data: bytes) -> list[bytes]:
        return [data]


class Bench:
    """A model and its optimizers trained by `order(needed)` over such an exchange."""

    def __init__(self, model: nn.Module, *optimizers: Optimizer, capacity: int = 64) -> None:
        class SmallBuckets(NeededOrderSynchronizer):
            pass

        SmallBuckets.capacity = capacity
        self.exchange, self.told, self.put_off = InFlight(), [], []
        members = sort_members([model, *optimizers])
        self.synchronizer, group = SmallBuckets(self.exchange), SingleWorkerGroup()
        self.transaction = StepTransaction(group.session)
        self.joined = JoinedModels(group, members, self.exchange, self.synchronizer, StepProgress(self, group), self)
        self.joined.hook_steps(first=True)

    def batch_tag(self) -> BatchTag:
        return BatchTag()

    def agree_on_batches(self) -> set[str]:
        return set()

    def wants_boundary(self) -> bool:
        return False

    def pass_began(self) -> None:
        pass

    def after_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        pass

    def before_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        assert joined.deferred is not None
        self.put_off.append(joined.deferred.put_off(optimizer, closure))

    def emit(self, event: RunEvent) -> None:
        if isinstance(event, WarningRaised):
            self.told.append(event.text)
