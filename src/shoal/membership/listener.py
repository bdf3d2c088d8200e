"""Listeners to changes of members, in an explicit order; and what a session needs from its group.

    kill -9 ─▶ launcher ─ ProcessExited ─▶ coordinator ─ ProposeView, InstallView ─▶ agent (its own thread)
                                                                                       │ OperationTransport.leave_view
    training thread: session.enter | settle | begin ─▶ MembershipListeners.notify ─▶ on_view_change, stage by stage

`grep on_view_change` finds everything that follows a view, `grep OperationTransport` everything that carries one.
docs/membership.md draws the whole way from a lost worker to the next committed step.
"""

import enum
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from shoal.membership.view import MembershipView


class ListenerStage(enum.IntEnum):
    """When a listener is told, lowest first; inside a stage, in order of registration."""

    group = 0
    """Ranks, links and mailboxes: whatever follows talks to the new members through them."""
    training = 1
    """Position, ledger and the state for newcomers, before an exchange adapts to its new members."""
    exchange = 2
    """Engines and aggregators: their flags, scales and measurements."""


class MembershipListener(Protocol):
    """Follows the members of a run."""

    @abstractmethod
    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        """Adapt to a new view, in the training thread; `newcomers` are its members that have no state yet."""


class MembershipListeners:
    """The listeners of one session: an explicit list, ordered by stage."""

    def __init__(self) -> None:
        self._entries: list[tuple[ListenerStage, MembershipListener]] = []

    def add(self, listener: MembershipListener, stage: ListenerStage) -> None:
        self._entries.append((stage, listener))
        self._entries.sort(key=lambda entry: entry[0])  # stable: registration order holds inside a stage

    def __iter__(self) -> Iterator[MembershipListener]:
        return (listener for _, listener in self._entries)

    def remove_all(self, stage: ListenerStage) -> None:
        """Forget the listeners of a stage, as when a new plan has other engines."""
        self._entries = [entry for entry in self._entries if entry[0] != stage]

    def notify(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        """Tell all listeners, in order; a stage may replace the listeners of later ones."""
        # The list is read again for each stage, because a stage may have changed it.
        for stage in ListenerStage:
            for listener in [each for at, each in self._entries if at == stage]:
                listener.on_view_change(view, newcomers)


class OperationTransport:
    """How members show each other what they hold, without the coordinator. A group provides it to its session.

    The base does nothing: the null member, of a session that belongs to no group yet.
    """

    def leave_view(self, generation: int) -> None:
        """Show all members that this one has left every view before `generation`. Called in the agent's thread."""

    def all_stay(self) -> bool:
        """Return whether no member has left the view."""
        return True

    def announce_result(self) -> None:
        """Tell all members, once, that this worker holds the operation's result."""

    def confirm_result(self) -> None:
        """Announce the result, and wait until all members have announced it."""
