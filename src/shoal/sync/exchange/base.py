"""The contract of an exchange.

    buckets = exchange.open(plans)   memory for every bucket
    exchange.prepare()               before the first gradient of an exchange is put
    exchange.start(i)                bucket i is sealed and may leave; in the same order on every worker
    exchange.launched()              all buckets of this exchange have started
    exchange.progress()              called between layers; never blocks
    exchange.finish(i)               bucket i holds what the replicas agreed on

An exchange counts what it costs in `sent` and `wire` (bytes of this worker since it was opened).

When members are lost in the middle (`session`), `repeat` or `recover` lets everything be finished again: see
`sync/repeatable.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.groups.base import LARGEST_WORD, Check
from shoal.membership.session import MembershipSession
from shoal.sync.meter import ExchangeMeter
from shoal.sync.news import News
from shoal.sync.price import NetworkEstimate
from shoal.sync.repeatable import RetryableExchange
from shoal.wire.bucket import BucketPlan, GradientBucket


class GradientExchange(RetryableExchange, ABC):
    """HOW replicas agree on the content of buckets."""

    weight: float
    """What a worker multiplies its gradients by before they are summed."""
    peers: Sequence[int]
    """Ranks this worker's payloads go to."""
    raw: int = 0
    sent: int = 0
    wire: int = 0
    encoding: float = 0.0
    """Seconds spent in codecs inside `start`."""
    codec: str = ""
    """What gradients travel as: the wire terms of the plan, as text."""
    codes: bool = True
    """Whether what all agree on may be less than what they have, so that most of it may be zero."""
    meets: str = "sum"
    """How the payloads of all workers come together."""
    _buckets: Sequence[GradientBucket] = ()
    news: Sequence[News] = ()
    """What it has decided since somebody last took these away."""
    meter: ExchangeMeter | None = None
    """Takes the figures of each bucket, while a step is measured."""

    @property
    def layers(self) -> list[list[str]]:
        """Whose gradients lie in each bucket."""
        return [[slot.name for slot in bucket.plan.slots if slot.name] for bucket in self._buckets]

    def landed(self, index: int) -> bool:
        """Whether `finish(i)` would find all it waits for; False where nobody can tell."""
        return False

    def tell(self, news: News) -> None:
        self.news = [*self.news, news]

    def network(self) -> NetworkEstimate:
        """What is known of the way to the others."""
        return NetworkEstimate()

    @abstractmethod
    def open(self, plans: Sequence[BucketPlan]) -> list[GradientBucket]: ...

    def prepare(self) -> None:
        """Wait until buckets may be written again; most exchanges have nothing to wait for."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    @abstractmethod
    def progress(self) -> None: ...

    @abstractmethod
    def finish(self, index: int) -> None: ...

    def launched(self) -> None:
        """All buckets of this exchange have started."""

    def hurry(self, urgencies: Sequence[int]) -> None:
        """Let bucket i leave before those with a higher number, where an engine can."""

    def arrival(self, index: int) -> float | None:
        """When bucket i, now finished, had come in; None where nobody looked."""
        return None

    session: MembershipSession
    """Whose members take part."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers from step to step, by name; views, so that they can be loaded in place."""
        return {}

    def shared(self) -> dict[str, Tensor]:
        """What is the same on all workers, by name: newcomers take it over with the weights."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state` or `shared` gave, here or elsewhere."""
        for name, own in self.state().items():
            if name in state and state[name].shape == own.shape:
                own.copy_(state[name])

    @abstractmethod
    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Everybody's `data`, inside the operation under way: for what has no fixed size and so no bucket."""
