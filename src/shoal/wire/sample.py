"""A sample of a large tensor that is spread evenly: whole lines of a cache, for one element of a line costs as much."""

from dataclasses import dataclass

from torch import Tensor

LINE = 16
MOST = 1 << 16
"""Elements of a sample."""


@dataclass(frozen=True)
class SampledLines:
    """Every `stride`-th line; all of what is little."""

    number: int
    size: int
    stride: int

    @classmethod
    def of(cls, numel: int) -> "SampledLines":
        if numel <= MOST:
            return cls(1, numel, 1)
        number = numel // LINE
        return cls(number, LINE, max(1, number * LINE // MOST))

    def sample(self, values: Tensor, rest: Tensor | None) -> Tensor:
        """What of `values + rest` is in it."""
        whole = slice(0, self.number * self.size)
        found = values[whole].view(self.number, self.size)[:: self.stride]
        if rest is not None:
            found = found + rest[whole].view(self.number, self.size)[:: self.stride]
        return found.flatten()
