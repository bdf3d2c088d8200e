"""Figures of each bucket's exchange, taken in some steps only: an observer has a meter while a step is measured.

    began ─ encode ─ left ─────── transfer ─────── arrived ─ decode ─ finished
                            backward goes on │ wait │

Arrivals are looked for between layers; a bucket not seen by then arrives when the wait for it ends.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.clock import now

RUNS, RUN = 128, 64
"""The most runs of elements that a norm is estimated from, and their length."""


@dataclass
class BucketAccount:
    """One bucket's figures, summed over measured steps."""

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
    """Measures the buckets of one exchange."""

    accounts: list[BucketAccount] = field(default_factory=list)
    span: float = 0.0
    """Summed over exchanges: seconds in which anything was in transfer."""
    room: float = 0.0
    """Summed over exchanges: seconds from the start of the first bucket until the last one was full."""
    _left: dict[int, float] = field(default_factory=dict)
    _in_transfer: set[int] = field(default_factory=set)
    _arrived: dict[int, float] = field(default_factory=dict)
    _until: float = 0.0
    """When the last bucket of this exchange arrived, so far."""
    _full: float = 0.0
    """When the first bucket left, or when the last one since was full."""

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
        self._in_transfer.add(index)

    def look(self, is_done: Callable[[int], bool]) -> None:
        """Note which buckets have arrived meanwhile."""
        for index in [index for index in self._in_transfer if is_done(index)]:
            self._in_transfer.discard(index)
            self._arrived[index] = now()

    def finished(self, index: int, began: float, wait: float, sent: float, wire: float) -> None:
        """Bucket `index` is finished; `began`: when the caller asked for it; `wait`: seconds waited since then.

        `sent` and `wire`: bytes that are known only now, of a second round.
        """
        if index not in self._left:  # finished again, after members were lost
            return
        time, account, left = now(), self.accounts[index], self._left.pop(index)
        self._in_transfer.discard(index)
        arrived = min(self._arrived.pop(index, began + wait), began + wait)
        account.transfer += max(0.0, arrived - left)
        account.wait += wait
        account.decode += max(0.0, time - began - wait)
        account.sent, account.wire = account.sent + sent, account.wire + wire
        if account.raw:  # a bucket without gradients (tags of batches) is in no figure
            self.span += max(0.0, arrived - max(left, self._until))
            self._until = max(self._until, arrived)

    def weigh(self, index: int, gradient: Tensor, residual: Tensor | None) -> None:
        """Add the norms of what is offered and of the residual that waits after it."""
        account = self.accounts[index]
        size, waits = estimated_norm(gradient), 0.0 if residual is None else estimated_norm(residual)
        if math.isfinite(size + waits):  # numbers that are not finite have events of their own
            account.gradient, account.residual = account.gradient + size, account.residual + waits


def estimated_norm(values: Tensor) -> float:
    """Return the norm, from runs of elements at equal distances: single elements would cost a cache line each."""
    flat = (torch.view_as_real(values) if values.is_complex() else values).view(-1)
    sample = flat
    if flat.numel() > RUNS * RUN:
        rows = flat[: flat.numel() // RUN * RUN].view(-1, RUN)
        sample = rows[:: -(-len(rows) // RUNS)].reshape(-1)
    sample = sample.float()
    return math.sqrt(float(torch.dot(sample, sample)) * flat.numel() / max(1, sample.numel()))
