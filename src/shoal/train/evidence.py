"""Whose gradients were not finite: kept at next to no cost, looked at only when something is wrong.

After an exchange everybody holds the same bad sum, and what each had given may be overwritten. A bias's gradient sums
the whole error that reaches its layer, so the small parameters of a worker tell whether its own pass went wrong: their
sums are kept, a number each. A worker that overflows in a large weight alone stays unnamed; the step is skipped anyway.
"""

from collections.abc import Sequence

from torch import Tensor

SMALL = 4096
"""Elements of a parameter that is summed up; the smallest one is, however large."""


class Evidence:
    """Sums of one worker's own gradients, of the last exchange."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        least = min((p.numel() for p in parameters), default=0)
        self._watched = frozenset(i for i, p in enumerate(parameters) if p.numel() <= max(SMALL, least))
        self._sums: list[Tensor] = []

    def clear(self) -> None:
        self._sums.clear()

    def saw(self, index: int, gradient: Tensor | None) -> None:
        """Gradient `index` as this worker computed it."""
        if index in self._watched and gradient is not None:
            self._sums.append((gradient._values() if gradient.is_sparse else gradient).detach().sum())

    @property
    def bad(self) -> bool:
        return any(not bool(one.isfinite()) for one in self._sums)
