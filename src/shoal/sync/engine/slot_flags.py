"""Flags in shared memory: which worker has filled an item, and which workers still read it.

    full[i][s] = n      the item i of slot s is full for the n-th time
    read[i][s] = n      slot s reads no more of the n-th items i, so they may be written again

The numbers of a later view are above all numbers of an earlier one, so nobody takes an old flag for a new one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.groups.host_workers import HostSharing
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView

Flags = npt.NDArray[np.int64]
LINE = 64
"""Bytes of a cache line. Rows of flags and tensors begin at one, so that no two items share a line."""


class SlotFlags(MembershipListener):
    """The flags of some items, and how often they were exchanged in this view."""

    def __init__(self, group: HostSharing) -> None:
        self.group, self.waiter = group, group.patience
        self._full: Sequence[Flags] = ()
        self._read: Sequence[Flags] = ()
        self._numbers: list[int] = []
        self._base, self._count = -1, 0
        self.started: list[int] = []
        """Items of the exchange under way, in order."""
        self.members: tuple[int, ...] = ()
        """Slots that take part in it."""

    def open(self, full: Sequence[Flags], read: Sequence[Flags]) -> None:
        """Use these rows of flags. A worker that takes the slot of a lost one inherits none of its debts."""
        self._full, self._read, self._numbers = full, read, [0] * len(full)
        self._occupied = False
        self.group.session.listeners.add(self, ListenerStage.exchange)
        self.on_view_change(self.group.session.view)

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str] = ()) -> None:
        if not self._occupied and self.group.session.member in view:
            self._occupied = True
            self._raise_own(*self._full, *self._read)

    def _raise_own(self, *rows: Flags) -> None:
        """Lift this worker's flags to this view's first number: it reads no more of anything older."""
        for row in rows:
            self.waiter.publish(row, max(int(row[self.group.slot]), self.group.base))

    def prepare(self) -> None:
        """Wait until nobody reads the items of the last exchange; the next one begins.

        In a new view that is when all members have come this far or retry the exchange they were in: one that
        finishes the old view's last exchange locally may read again what it has read before.
        """
        moved = self._base != self.group.base
        if moved:
            self._raise_own(*self._read)
        for row, number in zip(self._read, self._numbers, strict=True):
            self.waiter.until(row, self.group.base if moved else number)
        if moved or self.started:  # else the same exchange begins once more
            self._begin_exchange()
        self.started = []

    def _begin_exchange(self) -> None:
        base = self.group.base
        self._count = self._count + 1 if base == self._base else 1
        self._base, self.members = base, tuple(self.group.members)

    def start(self, index: int) -> None:
        self._numbers[index] = self._base + self._count
        self.waiter.publish(self._full[index], self._numbers[index])
        self.started.append(index)

    def number(self, index: int) -> int:
        """Return what the flags of an item must reach in the exchange under way."""
        return self._numbers[index]

    def is_full(self, index: int) -> bool:
        return self.waiter.reached(self._full[index], self._numbers[index])

    def await_full(self, index: int) -> None:
        self.waiter.until(self._full[index], self._numbers[index])

    def mark_read(self, index: int) -> None:
        self.waiter.publish(self._read[index], self._numbers[index])

    def await_read(self, index: int) -> None:
        self.waiter.until(self._read[index], self._numbers[index])

    def is_complete(self) -> bool:
        # another thread may ask while this one starts items, so a copy of the list
        return all(self.is_full(index) for index in list(self.started))

    def retry(self) -> None:
        """Start the same items again, among the members of the new view."""
        self._raise_own(*self._read)
        self._begin_exchange()
        again, self.started = self.started, []
        for index in again:
            self.start(index)

    def abandon(self) -> None:
        """Drop the exchange of a view that has ended; nobody waits until all have read it, because not all will."""
        self._raise_own(*self._read)
        self._begin_exchange()
        # number 0 is below every flag, so the next `prepare` does not wait for these items
        for index in self.started:
            self._numbers[index] = 0
        self.started = []


def round_to_lines(size: int) -> int:
    """Return `size` rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


def flag_bytes(kinds: int, items: int, slots: int) -> int:
    """Return the bytes that `flag_rows` takes at the beginning of a region."""
    return kinds * items * round_to_lines(8 * slots)


def flag_rows(memory: memoryview, kinds: int, items: int, slots: int) -> list[list[Flags]]:
    """Return a row of `slots` flags for each item of each kind, each row on cache lines of its own."""
    flags = np.frombuffer(memory, np.int64, flag_bytes(kinds, items, slots) // 8)
    flags = flags.reshape(kinds, items, round_to_lines(8 * slots) // 8)
    return [list(kind) for kind in flags[:, :, :slots]]


def tensor_at(memory: memoryview, start: int, dtype: torch.dtype, numel: int) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, offset=start, count=numel)
