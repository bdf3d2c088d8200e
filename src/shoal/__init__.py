"""Shoal trains one PyTorch model together on the machines and the network you have.

The façade: what a script needs. Everything else is imported from its part (`shoal.testing`, `shoal.plan` …). Names are
looked up when first used, so that `shoal show` and its like need not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.version import __version__

if TYPE_CHECKING:
    from shoal.core.errors import DeadlineError, LayoutError, PeerLost, ShoalError, UsageError
    from shoal.plan.plan import Plan
    from shoal.plan.registry import register_codec, register_synchronizer
    from shoal.train.block_schedule import BlockSchedule
    from shoal.train.run import Run, start
    from shoal.train.served_embedding import ServedEmbedding

__all__ = [
    "BlockSchedule",
    "DeadlineError",
    "LayoutError",
    "PeerLost",
    "Plan",
    "Run",
    "ServedEmbedding",
    "ShoalError",
    "UsageError",
    "__version__",
    "register_codec",
    "register_synchronizer",
    "start",
]

_HOMES = {
    "BlockSchedule": "shoal.train.block_schedule",
    "DeadlineError": "shoal.core.errors",
    "LayoutError": "shoal.core.errors",
    "PeerLost": "shoal.core.errors",
    "Plan": "shoal.plan.plan",
    "Run": "shoal.train.run",
    "ServedEmbedding": "shoal.train.served_embedding",
    "ShoalError": "shoal.core.errors",
    "UsageError": "shoal.core.errors",
    "register_codec": "shoal.plan.registry",
    "register_synchronizer": "shoal.plan.registry",
    "start": "shoal.train.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
