"""The entries of the coordinator's log, the state they add up to, and the effects (write, send) of its decisions."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from shoal.membership.plan_requests import PreparePlan
from shoal.membership.protocol import InstallView, Order
from shoal.membership.view import WIRE_NAMES, MembershipView

LEFT, LEFT_EARLY = "left", "left before the end"
"""Reasons of members that said goodbye: because the training is over, or before its end."""


class LogEntry(msgspec.Struct, frozen=True, tag=True, kw_only=True, rename=WIRE_NAMES):
    """Base of the entries of the log."""


class ViewProposed(LogEntry, frozen=True, kw_only=True, tag="Proposed"):
    """A generation was used, so every later one must be higher, even if no view ever gets it."""

    generation: int


class ViewInstalled(LogEntry, frozen=True, kw_only=True, tag="Installed"):
    """A view was installed, with its decision about the operation that was under way."""

    install: InstallView


class MemberLost(LogEntry, frozen=True, kw_only=True, tag="Lost"):
    """A member is lost, for this reason; its id is never used again."""

    member: str
    reason: str


Entry = ViewProposed | ViewInstalled | MemberLost


class LogState(msgspec.Struct, tag="Memory", rename=WIRE_NAMES):
    """The state that the entries of a log add up to."""

    generation: int = 0
    """The highest generation that was ever used."""
    installed: InstallView = msgspec.field(default_factory=lambda: InstallView(view=MembershipView(), through=0))
    shared: MembershipView = msgspec.field(default_factory=MembershipView)
    """The last view that was made between two steps; its members share the samples of the second."""
    lost: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        match entry:
            case ViewProposed(generation=generation):
                self.generation = max(self.generation, generation)
            case ViewInstalled(install=install):
                self.generation = max(self.generation, install.view.generation)
                self.installed = install
                self.shared = install.view if install.between else self.shared
            case MemberLost(member=member, reason=reason):
                self.lost[member] = reason


def training_over(entries: Iterable[Entry]) -> bool:
    """Return whether one of the run's own workers left because the training had come to its end."""
    remote: set[str] = set()
    over = False
    for entry in entries:
        if isinstance(entry, ViewInstalled):
            infos = zip(entry.install.view.members, entry.install.infos, strict=False)
            remote |= {member for member, info in infos if info.remote}
        elif isinstance(entry, MemberLost):
            # A remote worker's goodbye proves nothing: it may leave, or lie, at any time.
            over |= entry.reason == LEFT and entry.member not in remote
    return over


@dataclass(frozen=True)
class WriteEntry:
    """Make this durable before anything that follows."""

    entry: Entry


@dataclass(frozen=True)
class SendMessage:
    """Send an order to a member."""

    member: str
    order: Order


@dataclass(frozen=True)
class AskLauncher:
    """Ask the launcher for what the next plan needs."""

    question: PreparePlan


Effect = WriteEntry | SendMessage | AskLauncher
