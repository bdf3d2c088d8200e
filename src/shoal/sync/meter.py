"""Figures of each bucket's exchange, taken in some steps only: an exchange has a meter while a step is measured.

    began ─ encode ─ left ─────── transfer ─────── landed ─ decode ─ in its place
                            backward goes on │ wait │

Whether a bucket has landed is looked at between layers; what has not by then has when the wait for it ends.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.clock import now

RUNS, RUN = 128, 64
"""Runs of elements a norm is estimated from, at the most, and their length."""


@dataclass
class BucketAccount:
    """Sums over measured steps, of one bucket."""

    layers: list[str]
    raw: float = 0.0
    sent: float = 0.0
    wire: float = 0.0
    encode: float = 0.0
    transfer: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    gradient: float = 0.0
    residual: float = 0.0


@dataclass
class ExchangeMeter:
    """Of one exchange."""

    accounts: list[BucketAccount] = field(default_factory=list)
    span: float = 0.0
    """Summed over exchanges: seconds in which anything was under way."""
    room: float = 0.0
    """Summed over exchanges: seconds from the first bucket's leaving to the last one's being full."""
    _left: dict[int, float] = field(default_factory=dict)
    _flying: set[int] = field(default_factory=set)
    _landed: dict[int, float] = field(default_factory=dict)
    _until: float = 0.0
    """When the last transfer of this exchange had landed, so far."""
    _full: float = 0.0
    """When the first bucket had left, or the last one since was full."""

    @classmethod
    def over(cls, names: Sequence[Sequence[str]]) -> "ExchangeMeter":
        return cls([BucketAccount(list(layers)) for layers in names])

    def left(self, index: int, began: float, raw: float, sent: float, wire: float) -> None:
        """Bucket `index`, full since `began`, has just left."""
        time, account = now(), self.accounts[index]
        account.encode += time - began
        account.raw, account.sent, account.wire = account.raw + raw, account.sent + sent, account.wire + wire
        if not self._left:
            self._until = self._full = time
        self.room += max(0.0, began - self._full)
        self._full = max(self._full, began)
        self._left[index] = time
        self._flying.add(index)

    def look(self, landed: Callable[[int], bool]) -> None:
        """Note what has come meanwhile."""
        for index in [index for index in self._flying if landed(index)]:
            self._flying.discard(index)
            self._landed[index] = now()

    def finished(self, index: int, began: float, wait: float, sent: float, wire: float) -> None:
        """Bucket `index` is in its place; `began`: when its end was asked for; `wait`: what was waited since.

        `sent` and `wire`: bytes that are known only now, of a second round.
        """
        if index not in self._left:  # finished again, after members were lost
            return
        time, account, left = now(), self.accounts[index], self._left.pop(index)
        self._flying.discard(index)
        landed = min(self._landed.pop(index, began + wait), began + wait)
        account.transfer += max(0.0, landed - left)
        account.wait += wait
        account.decode += max(0.0, time - began - wait)
        account.sent, account.wire = account.sent + sent, account.wire + wire
        if account.raw:  # a bucket without gradients (tags of batches) is in no figure
            self.span += max(0.0, landed - max(left, self._until))
            self._until = max(self._until, landed)

    def weigh(self, index: int, gradient: Tensor, residual: Tensor | None) -> None:
        """How large what is offered is, and what waits after it."""
        account = self.accounts[index]
        size, waits = estimated_norm(gradient), 0.0 if residual is None else estimated_norm(residual)
        if math.isfinite(size + waits):  # bad numbers have events of their own
            account.gradient, account.residual = account.gradient + size, account.residual + waits


def estimated_norm(values: Tensor) -> float:
    """The norm, from some runs of elements at equal distances: single ones would cost a cache line each."""
    flat = (torch.view_as_real(values) if values.is_complex() else values).view(-1)
    sample = flat
    if flat.numel() > RUNS * RUN:
        rows = flat[: flat.numel() // RUN * RUN].view(-1, RUN)
        sample = rows[:: -(-len(rows) // RUNS)].reshape(-1)
    sample = sample.float()
    return math.sqrt(float(torch.dot(sample, sample)) * flat.numel() / max(1, sample.numel()))
