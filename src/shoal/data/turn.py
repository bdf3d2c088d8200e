"""One pass over a loader: the coordinates from which everything random about it follows."""

from dataclasses import dataclass

from shoal.core.seeds import mix


@dataclass(frozen=True, slots=True)
class PassKey:
    """Pass `number` within `epoch`; equal turns read equal samples in equal order, on every machine."""

    seed: int
    epoch: int
    number: int
    """How often this loader had been iterated in this epoch before; 0 for the usual single pass."""

    def mix(self, purpose: str, *more: int | str) -> int:
        """A seed for one purpose within this turn."""
        return mix(purpose, self.seed, self.epoch, self.number, *more)
