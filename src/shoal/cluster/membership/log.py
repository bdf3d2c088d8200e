"""What a coordinator writes down before anybody hears of it, and what it knows again after it was killed."""

import msgspec

from shoal.cluster.membership.messages import Install
from shoal.cluster.membership.view import View

LEFT, LEFT_EARLY = "left", "left before the end"
"""Reasons of members that said goodbye: the training is over for all, or it is not."""


class Record(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of the entries of the log."""


class Proposed(Record, frozen=True, kw_only=True):
    """An epoch was used: none after it may be smaller."""

    epoch: int


class Installed(Record, frozen=True, kw_only=True):
    """A view, and what it decided about the operation that was under way."""

    install: Install


class Lost(Record, frozen=True, kw_only=True):
    """A member is out, for this reason, and its id is never let in again."""

    member: str
    reason: str


Entry = Proposed | Installed | Lost


class Memory(msgspec.Struct):
    """The sum of a log."""

    epoch: int = 0
    """The highest that was ever used."""
    installed: Install = msgspec.field(default_factory=lambda: Install(view=View(), through=0))
    shared: View = msgspec.field(default_factory=View)
    """The last view that was made between two steps, to share out the second."""
    lost: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        match entry:
            case Proposed(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case Installed(install=install):
                self.epoch = max(self.epoch, install.view.epoch)
                self.installed = install
                self.shared = install.view if install.between else self.shared
            case Lost(member=member, reason=reason):
                self.lost[member] = reason
