"""What a plan says of steps against servers, what a worker counts of them, and what servers can keep."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.sync.server.messages import StepDeadline


@dataclass(frozen=True)
class ServerPace:
    """What a plan says of the servers' shards and of how often values are pulled."""

    bound: int | None
    """Steps a worker may be ahead of the slowest; None: any number."""
    rule: str = "add"
    settings: dict[str, float] = field(default_factory=dict)
    eager: bool = False
    """Whether values are pulled after every step, however fresh those here are."""
    adaptive: bool = False
    """Whether a push counts the less the staler it is."""
    prefetch: bool = False
    """Whether values are waited for only when the next step needs them (`prefetching_steps.py`)."""
    speculate: float = 0.0
    """Without a bound: a step begins again when so many updates of each other worker have come; 0: it never does
    (`speculative_steps.py`)."""
    deadline: StepDeadline | None = None
    """With bound 0: steps are taken without the slowest (`deadline_steps.py`)."""
    by_host: bool = False
    """Whether the workers of a host push together (`host_steps.py`)."""


@dataclass
class ServerTotals:
    """Of all steps so far, on one worker."""

    pushes: int = 0
    refused: int = 0
    """Pushes that were not finite."""
    late: int = 0
    """Pushes whose step had been taken without them."""
    unused: int = 0
    """Leased samples of those that count for nothing."""
    restarts: int = 0
    """Forward passes that were made again on fresher values."""
    gained: int = 0
    """Updates of others that these values had more."""
    pulls: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Clocks that the slowest member was behind -> steps that began with such values."""
    waited: Counter[str] = field(default_factory=Counter)
    """Member -> milliseconds that pulls have waited for it."""


def check_served(names: Sequence[str], parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """UsageError if servers cannot keep these parameters, or if nothing says when a step is made."""
    if not optimizers:
        raise UsageError("stale(…) and async push after an optimizer's step, and join() got none; give it one too")
    odd = next((n for n, p in zip(names, parameters, strict=True) if p.dtype != torch.float32), None)
    if odd is not None:
        raise UsageError(f"parameter {odd!r} is not of float32, which is all that servers keep; write every(1)")
