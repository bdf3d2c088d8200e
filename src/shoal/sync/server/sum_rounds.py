"""Sums at a server: tensors of all members of a view, added up in the order of the members; no socket, no clock.

    add(member, key, members, tensor)    the sum once all members have sent theirs, else None

A key names the view's generation, the engine, the tensor and how often it was exchanged in this view. When a member of
a newer view sends something, all that is open of older views is dropped: nobody waits for it any more, because those
that stay repeat it in the new view (`sync/retryable.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import PayloadError

HALF = (torch.float16, torch.bfloat16)
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
}
"""What may be summed, by the name it travels under."""


@dataclass(frozen=True)
class SumKey:
    """Which sum a tensor belongs to."""

    generation: int
    channel: int
    index: int
    number: int


@dataclass(frozen=True, eq=False)
class OpenSum:
    """What has come of a sum so far."""

    key: SumKey
    members: list[str]
    parts: dict[str, Tensor]


class SumRounds:
    """All sums that are open at one server."""

    def __init__(self) -> None:
        self._open: dict[SumKey, dict[str, Tensor]] = {}
        self._members: dict[SumKey, Sequence[str]] = {}
        self._generation = 0

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def generation(self) -> int:
        return self._generation

    def list_open(self) -> list[OpenSum]:
        """Return all sums that are open, as a replica takes them over."""
        return [OpenSum(key, list(self._members[key]), dict(parts)) for key, parts in self._open.items()]

    def restore(self, sums: Sequence[OpenSum], generation: int) -> None:
        """Go on with the open sums of another server, and of this view."""
        self._open = {each.key: each.parts for each in sums}
        self._members = {each.key: each.members for each in sums}
        self._generation = generation

    def add(self, member: str, key: SumKey, members: Sequence[str], tensor: Tensor) -> Tensor | None:
        """Take a member's tensor, which must stay as it is. PayloadError: no honest member sends it."""
        # that view has ended: those that stay repeat the sum in the newest
        if key.generation < self._generation:
            return None
        if member not in members:
            raise PayloadError(f"{member} sends a tensor for a sum of {', '.join(members[:8])}; it is none of them")
        self.follow(key.generation)
        parts = self._open.setdefault(key, {})
        self._members[key] = members
        other = next(iter(parts.values()), tensor)
        if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            raise PayloadError(
                f"{member} sends {tensor.numel()} {tensor.dtype} where others send {other.numel()} {other.dtype}; "
                "all workers must train the same model by the same plan"
            )
        parts[member] = tensor
        if len(parts) < len(members):
            return None
        del self._open[key], self._members[key]
        return add_up([parts[each] for each in members])

    def find_missing(self, key: SumKey) -> list[str]:
        """Return the members whose tensors an open sum waits for."""
        parts = self._open.get(key, {})
        return [member for member in self._members.get(key, ()) if member not in parts]

    def open_numbers(self, member: str, key: SumKey) -> int:
        """Return how many other sums of the same tensor wait with a part of this member's."""
        same = (other for other in self._open if (other.channel, other.index) == (key.channel, key.index))
        return sum(other != key and member in self._open[other] for other in same)

    def follow(self, generation: int) -> None:
        """Drop what is open of views before this one."""
        if generation > self._generation:
            self._generation = generation
            self._open = {key: parts for key, parts in self._open.items() if key.generation == generation}
            self._members = {key: self._members[key] for key in self._open}


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum in the order given, so that its bits do not depend on the network; halves are rounded once."""
    if parts[0].dtype in HALF:
        return torch.stack(list(parts)).float().sum(0).to(parts[0].dtype)
    # a copy: parts may lie in their members' own memory
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total


def read_tensor(member: str, dtype: str, arrays: Sequence[Any]) -> torch.Tensor:
    """Return what a member sends to be summed, in its own memory. PayloadError: it is no tensor."""
    kind = DTYPES.get(dtype)
    if kind is None or len(arrays) != 1 or not (size := memoryview(arrays[0]).nbytes) or size % kind.itemsize:
        raise PayloadError(
            f"{member} sends {len(arrays)} arrays of {dtype[:20]!r} to be summed; send one of a float type"
        )
    return torch.frombuffer(memoryview(arrays[0]), dtype=kind)
