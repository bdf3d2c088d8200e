"""Each part of a model has an exchange of its own, and all are one operation: every bucket goes through its part's.

    bucket of embeddings.weight  ->  exchange 0: topk(0.01), gathered
    bucket of head.*             ->  exchange 1: fp16, summed
    statistics, tags             ->  exchange 0, which carries uncoded what is no gradient

Buckets hold gradients of one part only, and leave in the order the backward pass fills them, whatever their part. Do
not use it where parts have the same plan: then one exchange has fewer and fuller buckets.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from shoal.groups.base import LARGEST_WORD, Check
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.price import NetworkEstimate, merged
from shoal.wire.bucket import BucketPlan, GradientBucket

GUARD = "guard."
"""How names of state begin that do not say of which layer they are; they get the number of their exchange."""


class PartedExchange(GradientExchange):
    """`parts`: one exchange for each, with one observer; `part_of` says which is that of a parameter."""

    def __init__(self, parts: Sequence[GradientExchange], part_of: Callable[[str], int], text: str = "") -> None:
        super().__init__(parts[0].observer)
        self.parts, self._part_of, self._text = parts, part_of, text
        self.session = parts[0].session
        self.compresses = any(part.compresses for part in parts)
        self._opened: list[GradientExchange] = []
        """Those that have a bucket: a join may have no parameter of a part."""
        self._owners: dict[int, GradientExchange] = {}

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        # every part has the same workers
        return self.parts[0].peers

    @property
    def weight(self) -> float:
        return self.parts[0].weight

    @weight.setter
    def weight(self, weight: float) -> None:
        for part in self.parts:
            part.weight = weight

    def part_of(self, name: str) -> int:
        return self._part_of(name)

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        found: dict[int, GradientBucket] = {}
        for number, part in enumerate(self.parts):
            own = {index: plan for index, plan in plans.items() if self._part_of_bucket(plan) == number}
            if own:
                found |= part.open_numbered(own)
                self._opened.append(part)
                self._owners |= dict.fromkeys(own, part)
        self._buckets = {index: found[index] for index in plans}
        return dict(self._buckets)

    def _part_of_bucket(self, plan: BucketPlan) -> int:
        # all slots of a bucket are of one part
        name = plan.slots[0].name
        return self._part_of(name) if name else 0

    def prepare(self) -> None:
        for part in self._opened:
            part.prepare()
        # after the parts, each of which has named its own codec
        self.observer.codec = self._text

    def start(self, index: int) -> None:
        self._owners[index].start(index)

    def all_started(self) -> None:
        for part in self._opened:
            part.all_started()

    def advance(self) -> None:
        for part in self._opened:
            part.advance()

    def finish(self, index: int) -> None:
        self._owners[index].finish(index)

    def is_done(self, index: int) -> bool:
        return self._owners[index].is_done(index)

    def set_priorities(self, priorities: Sequence[int]) -> None:
        for part in self._opened:
            part.set_priorities(priorities)

    def arrival_time(self, index: int) -> float | None:
        return self._owners[index].arrival_time(index)

    def estimate_network(self) -> NetworkEstimate:
        return merged(part.estimate_network() for part in self._opened)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return all(part.retryable for part in self._opened)

    def is_complete(self) -> bool:
        return all(part.is_complete() for part in self._opened)

    def retry(self) -> None:
        for part in self._opened:
            part.retry()

    def finish_locally(self) -> None:
        for part in self._opened:
            part.finish_locally()

    def state(self) -> dict[str, Tensor]:
        return self._named([part.state() for part in self._opened])

    def shared(self) -> dict[str, Tensor]:
        return self._named([part.shared() for part in self._opened])

    def _named(self, states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Names of layers are those of one part; others would be the same in several."""
        return {_outside(name, n): tensor for n, state in enumerate(states) for name, tensor in state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for number, part in enumerate(self._opened):
            part.load({_inside(name, number): tensor for name, tensor in state.items()})

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.parts[0].gather(data, limit, check)


def _outside(name: str, number: int) -> str:
    return f"{GUARD}{number}.{name.removeprefix(GUARD)}" if name.startswith(GUARD) else name


def _inside(name: str, number: int) -> str:
    own = f"{GUARD}{number}."
    return f"{GUARD}{name.removeprefix(own)}" if name.startswith(own) else name
