"""The contract of an exchange: HOW replicas agree on the content of buckets.

    buckets = exchange.open(plans)   memory for every bucket
    exchange.prepare()               before the first gradient is written
    exchange.start(i)                bucket i is sealed and may leave; in the same order on every worker
    exchange.all_started()           all buckets of this exchange have started
    exchange.progress()              called between layers; never blocks
    exchange.finish(i)               bucket i holds what the replicas agreed on

Its `observer` counts what it costs and records what it decides. If members of its `session` are lost in the middle,
`retry` or `finish_locally` completes the exchange without them: see `sync/retryable.py`.
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
    """The members of this session take part."""
    weight: float
    """What a worker multiplies its gradients by before they are summed."""
    peers: Sequence[int]
    """Ranks this worker's payloads go to."""
    compresses: bool = True
    """Whether results may omit much of what workers offer, so that most of a result may be zero."""

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
        """Return buckets under the numbers given by an exchange that wraps this one."""

    def prepare(self) -> None:
        """Wait until buckets may be written again."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    def all_started(self) -> None:
        """Note that all buckets of this exchange have started."""

    def progress(self) -> None:
        """Do what needs no waiting, and show the observer which buckets have arrived."""
        # only the outermost exchange is called: it knows which exchange carries which bucket
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
        """Return the estimated rate and round trip of the links to other workers."""
        return NetworkEstimate()

    def state(self) -> dict[str, Tensor]:
        """Return the state carried from step to step, by name; views, so that `load` works in place."""
        return {}

    def shared(self) -> dict[str, Tensor]:
        """Return the state that is equal on all workers, by name: newcomers get it with the weights."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` or `shared` returned, on this or another worker."""
        for name, own in self.state().items():
            # a state may be of another plan, so what does not fit is left out
            if name in state and state[name].shape == own.shape:
                own.copy_(state[name])

    def close(self) -> None:
        """Release what it observes outside its buckets, because another exchange replaces it."""

    @abstractmethod
    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Return every worker's `data`, by rank, within the current operation: for data of no fixed size."""


class WrappingExchange(GradientExchange):
    """An exchange around another one, with the same workers, weight, observer and bucket numbers.

    It delegates every call; subclasses override what they do themselves.
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
