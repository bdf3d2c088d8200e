"""The contract of a peer: another tool that trains the models of an unmodified script together.

    peer.open(place)                       once per worker, before the script joins anything
    peer.attach(models, optimizers, cost)  at `run.join`: models hold worker 0's state already
    with peer.quiet(): …                   inside `run.accumulate()`: gradients add up
    peer.close()                           at the end of the script

A peer adapts a tool that trains PyTorch modules (Horovod, hivemind). A tool with models of its own (TensorFlow) cannot
run the same script; it takes part as a `BenchContestant` whose command leaves a record in Shoal's format.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.sync.cost import ExchangeCost
from shoal.sync.exchange.base import GradientExchange


@dataclass(frozen=True)
class PeerPlace:
    """The place of a peer's worker: its rank, and the number of workers."""

    rank: int
    size: int
    dir: Path
    """The run's folder; what is called `rendezvous-…` in it is removed at the end."""
    seconds: float
    """How long a wait for another worker may take."""


@dataclass(frozen=True)
class PeerCost:
    """Collects a peer's timings for the run's record."""

    spent: ExchangeCost
    exchange: GradientExchange

    def sent(self, raw: int, sent: int, size: int) -> None:
        """Count one all-reduce among `size` workers: float32 bytes, and bytes of the payload that stood for them."""
        self.exchange.observer.raw_bytes += raw
        self.exchange.observer.sent_bytes += sent
        # What a ring all-reduce sends; gloo does not tell what it sent.
        self.exchange.observer.wire_bytes += 2 * (size - 1) * sent // size


class BenchPeer(ABC):
    """One worker's side of another tool. Called by the script's main thread."""

    @abstractmethod
    def open(self, place: PeerPlace) -> None: ...

    @abstractmethod
    def attach(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], cost: PeerCost) -> None: ...

    @contextmanager
    def quiet(self) -> Iterator[None]:
        yield

    @abstractmethod
    def close(self) -> None: ...


def trained(models: Sequence[nn.Module]) -> list[Tensor]:
    """The parameters of `models` that get gradients, each once."""
    return list({id(p): p for model in models for p in model.parameters() if p.requires_grad}.values())
