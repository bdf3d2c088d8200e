"""What differs between two versions: metrics, lineage, and every tensor."""

import msgspec

from shoal.models.registry import Registry
from shoal.models.version import ModelVersion

_FIELDS = (
    "run", "plan", "step", "epoch", "samples", "seed", "workers", "script", "code", "data", "parent",
    "parameters", "kind",
)  # fmt: skip


class TensorChange(msgspec.Struct, frozen=True):
    """A tensor that is not the same in both versions."""

    name: str
    what: str
    """`added`, `removed`, `reshaped` or `changed`."""
    largest: float = 0.0
    """Largest absolute difference of an element."""
    relative: float = 0.0
    """Norm of the difference, relative to the first version's norm."""


class VersionDiff(msgspec.Struct, frozen=True):
    """From the first version to the second."""

    first: str
    second: str
    metrics: dict[str, tuple[float | None, float | None]]
    fields: dict[str, tuple[str | int, str | int]]
    tensors: list[TensorChange]
    same: int
    """Tensors that are equal bit by bit."""


def diff(registry: Registry, first: ModelVersion, second: ModelVersion) -> VersionDiff:
    """Compare two versions; equal weights are not read."""
    names = [*first.metrics, *(name for name in second.metrics if name not in first.metrics)]
    metrics = {name: (first.metrics.get(name), second.metrics.get(name)) for name in names}
    pairs = {field: (getattr(first, field), getattr(second, field)) for field in _FIELDS}
    changes, same = _tensors(registry, first, second)
    return VersionDiff(
        first.ref,
        second.ref,
        {name: pair for name, pair in metrics.items() if pair[0] != pair[1]},
        {field: pair for field, pair in pairs.items() if pair[0] != pair[1]},
        changes,
        same,
    )


def _tensors(registry: Registry, first: ModelVersion, second: ModelVersion) -> tuple[list[TensorChange], int]:
    # Equal digests are equal weights, so gigabytes need not be read.
    if first.weights == second.weights:
        return [], len(registry.manifest(first).tensors)
    old, new = registry.tensors(first), registry.tensors(second)
    changes = [TensorChange(name, "removed") for name in old if name not in new]
    same = 0
    for name, tensor in new.items():
        before = old.get(name)
        if before is None:
            changes.append(TensorChange(name, "added"))
        elif before.shape != tensor.shape or before.dtype != tensor.dtype:
            changes.append(TensorChange(name, "reshaped"))
        elif before.equal(tensor):
            same += 1
        else:
            # In float64, because differences of integers and half floats could overflow or vanish.
            apart = tensor.double() - before.double()
            norm = float(before.double().norm())
            relative = float(apart.norm()) / norm if norm else float("inf")
            changes.append(TensorChange(name, "changed", float(apart.abs().max()), relative))
    return changes, same
