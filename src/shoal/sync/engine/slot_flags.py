"""Who has filled what, and who still reads it: flags in shared memory, counted anew in every view.

    full[i][s] = n      item i of seat s is there for the n-th time
    read[i][s] = n      seat s reads no more of the n-th items i: they may be written again

Numbers of a later view are above all of an earlier one, so nobody takes an old flag for a new one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.groups.host_workers import HostSharing
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView

Flags = npt.NDArray[np.int64]


class SlotFlags(MembershipListener):
    """The flags of some items, and how often they were exchanged in this view."""

    def __init__(self, group: HostSharing) -> None:
        self.group, self.patience = group, group.patience
        self._full: Sequence[Flags] = ()
        self._read: Sequence[Flags] = ()
        self._numbers: list[int] = []
        self._base, self._count = -1, 0
        self.started: list[int] = []
        """Of the exchange under way, in order."""
        self.members: tuple[int, ...] = ()
        """Seats that take part in it."""

    def open(self, full: Sequence[Flags], read: Sequence[Flags]) -> None:
        """A worker that takes a lost one's seat owes nothing and is owed nothing."""
        self._full, self._read, self._numbers = full, read, [0] * len(full)
        self._seated = False
        self.group.session.listeners.add(self, ListenerStage.exchange)
        self.on_view_change(self.group.session.view)

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str] = ()) -> None:
        if not self._seated and self.group.session.member in view:
            self._seated = True
            for row in (*self._full, *self._read):
                self.patience.publish(row, max(int(row[self.group.seat]), self.group.base))

    def prepare(self) -> None:
        """Wait until nobody reads what was there the last time; the next exchange begins.

        In a new view that is when all have come this far, or repeat what they were in: one that recovers the last
        exchange of the old view may read again what it has read before.
        """
        moved = self._base != self.group.base
        if moved:
            self._let_go()
        for row, number in zip(self._read, self._numbers, strict=True):
            self.patience.until(row, self.group.base if moved else number)
        if moved or self.started:  # else it is the same exchange that begins once more
            self._next()
        self.started = []

    def _let_go(self) -> None:
        """This worker reads no more of anything that earlier views have left."""
        for row in self._read:
            self.patience.publish(row, max(int(row[self.group.seat]), self.group.base))

    def _next(self) -> None:
        base = self.group.base
        self._count = self._count + 1 if base == self._base else 1
        self._base, self.members = base, tuple(self.group.members)

    def start(self, index: int) -> None:
        self._numbers[index] = self._base + self._count
        self.patience.publish(self._full[index], self._numbers[index])
        self.started.append(index)

    def number(self, index: int) -> int:
        """What the flags of an item must reach in the exchange under way."""
        return self._numbers[index]

    def full(self, index: int) -> bool:
        return self.patience.reached(self._full[index], self._numbers[index])

    def await_full(self, index: int) -> None:
        self.patience.until(self._full[index], self._numbers[index])

    def summed(self, index: int) -> None:
        self.patience.publish(self._read[index], self._numbers[index])

    def await_summed(self, index: int) -> None:
        self.patience.until(self._read[index], self._numbers[index])

    def whole(self) -> bool:
        return all(self.full(index) for index in list(self.started))

    def repeat(self) -> None:
        """The same again, among the members of the new view."""
        self._let_go()
        self._next()
        again, self.started = self.started, []
        for index in again:
            self.start(index)

    def forget(self) -> None:
        """What has started in a view that has ended is not waited for: not everybody has read it, or will."""
        self._let_go()
        self._next()
        for index in self.started:
            self._numbers[index] = 0
        self.started = []
