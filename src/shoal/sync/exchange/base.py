"""The contract of an exchange: HOW replicas agree on the content of buckets.

    buckets = exchange.open(plans)   memory for every bucket
    exchange.prepare()               before the first gradient of an exchange is put
    exchange.start(i)                bucket i is sealed and may leave; in the same order on every worker
    exchange.all_started()           all buckets of this exchange have started
    exchange.progress()              called between layers; never blocks
    exchange.finish(i)               bucket i holds what the replicas agreed on

What it costs and decides is in its `observer`. When members of its `session` are lost in the middle, `retry` or
`finish_locally` lets everything be finished again: see `sync/retryable.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.groups.base import LARGEST_WORD, Check
from shoal.membership.session import MembershipSession
from shoal.sync.observer import ExchangeObserver
from shoal.sync.price import NetworkEstimate
from shoal.sync.retryable import RetryableOperation
from shoal.wire.bucket import BucketPlan, GradientBucket


class GradientExchange(RetryableOperation, ABC):
    """Called by the training thread, except for `is_complete`, which any thread may ask."""

    session: MembershipSession
    """Whose members take part."""
    weight: float
    """What a worker multiplies its gradients by before they are summed."""
    peers: Sequence[int]
    """Ranks this worker's payloads go to."""
    compresses: bool = True
    """Whether replicas may agree on less than they have, so that most of a result may be zero."""

    def __init__(self, observer: ExchangeObserver | None = None) -> None:
        self.observer = observer or ExchangeObserver()
        self._buckets: Mapping[int, GradientBucket] = {}

    def part_of(self, name: str) -> int:
        """Return the number of the part that a parameter belongs to; a bucket holds gradients of one part."""
        return 0

    @property
    def layers(self) -> list[list[str]]:
        """Names of the parameters whose gradients are in each bucket."""
        return [[slot.name for slot in bucket.plan.slots if slot.name] for bucket in self._buckets.values()]

    def open(self, plans: Sequence[BucketPlan]) -> list[GradientBucket]:
        """Return a bucket for each plan; their places are their numbers from now on."""
        return list(self.open_numbered(dict(enumerate(plans))).values())

    @abstractmethod
    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        """Return buckets under the numbers that an exchange around this one gives them."""

    def prepare(self) -> None:
        """Wait until buckets may be written again."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    def all_started(self) -> None:
        """All buckets of this exchange have started."""

    def progress(self) -> None:
        """Do what needs no waiting, and let the observer see what has arrived."""
        # only the outermost exchange is asked for progress: it alone knows who carries which bucket
        self.advance()
        self.observer.look(self.is_done)

    @abstractmethod
    def advance(self) -> None:
        """Do what needs no waiting."""

    @abstractmethod
    def finish(self, index: int) -> None: ...

    def is_done(self, index: int) -> bool:
        """Return whether `finish(i)` would not wait; False if the exchange cannot tell."""
        return False

    def set_priorities(self, priorities: Sequence[int]) -> None:
        """Let bucket i leave before those with a higher number, if the engine can."""

    def arrival_time(self, index: int) -> float | None:
        """Return when the result of bucket i, now finished, arrived; None if the engine cannot tell."""
        return None

    def estimate_network(self) -> NetworkEstimate:
        """Return what is known of the links to the other workers."""
        return NetworkEstimate()

    def state(self) -> dict[str, Tensor]:
        """Return what it remembers from step to step, by name; views, so that they can be loaded in place."""
        return {}

    def shared(self) -> dict[str, Tensor]:
        """Return what is the same on all workers, by name: newcomers take it over with the weights."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state` or `shared` returned, here or elsewhere."""
        for name, own in self.state().items():
            if name in state and state[name].shape == own.shape:
                own.copy_(state[name])

    def close(self) -> None:
        """Another exchange takes its place: let go of what it watches outside of its buckets."""

    @abstractmethod
    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Return every worker's `data`, by rank, inside the operation under way: for what has no fixed size."""


class WrappingExchange(GradientExchange):
    """An exchange around another one, with the same workers, weight, observer and bucket numbers.

    Everything is left to the exchange inside; subclasses override what they do themselves.
    """

    def __init__(self, inner: GradientExchange) -> None:
        super().__init__(inner.observer)
        self.inner, self.session = inner, inner.session

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        return self.inner.peers

    @property
    def weight(self) -> float:
        return self.inner.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self.inner.weight = weight

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        return self.inner.open_numbered(plans)

    def prepare(self) -> None:
        self.inner.prepare()

    def start(self, index: int) -> None:
        self.inner.start(index)

    def all_started(self) -> None:
        self.inner.all_started()

    def advance(self) -> None:
        self.inner.advance()

    def finish(self, index: int) -> None:
        self.inner.finish(index)

    def is_done(self, index: int) -> bool:
        return self.inner.is_done(index)

    def part_of(self, name: str) -> int:
        return self.inner.part_of(name)

    def set_priorities(self, priorities: Sequence[int]) -> None:
        self.inner.set_priorities(priorities)

    def arrival_time(self, index: int) -> float | None:
        return self.inner.arrival_time(index)

    def estimate_network(self) -> NetworkEstimate:
        return self.inner.estimate_network()

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return self.inner.retryable

    def is_complete(self) -> bool:
        return self.inner.is_complete()

    def retry(self) -> None:
        self.inner.retry()

    def finish_locally(self) -> None:
        self.inner.finish_locally()

    def state(self) -> dict[str, Tensor]:
        return self.inner.state()

    def shared(self) -> dict[str, Tensor]:
        return self.inner.shared()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load(state)

    def close(self) -> None:
        self.inner.close()

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.inner.gather(data, limit, check)
