"""A worker's side of membership as a pure state machine: when an operation is complete, what holds when a view ends.

Also the members that this worker was paired with to stream state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.core.clock import now
from shoal.membership.protocol import (
    ConfirmResult,
    Heartbeat,
    InstallView,
    LeaseRenewal,
    Order,
    ProposeAck,
    ProposeView,
    StreamStateFrom,
    StreamStateTo,
)
from shoal.membership.view import MembershipView


@dataclass
class StreamingPartners:
    """The members that one worker streams state to and from. Its agent's thread writes, its training thread reads."""

    waits: bool = False
    """Whether this worker is a newcomer that receives a stream before it enters."""
    offer: StreamStateFrom | None = None
    """The member that was last asked to stream its state to this worker."""
    asked: dict[str, tuple[StreamStateTo, float]] = field(default_factory=dict)
    """Newcomers that this worker should stream to, and when the coordinator last asked for each."""

    def hear(self, order: Order) -> None:
        """Take in the coordinator's pairings; other orders change nothing."""
        if isinstance(order, StreamStateFrom):
            self.offer = order
        elif isinstance(order, StreamStateTo):
            self.asked[order.member] = (order, now())


@dataclass
class MemberState:
    """The state of one member. `inside` tells whether an operation is under way."""

    id: str
    until: float = 0.0
    """When the lease ends, on this member's own clock."""
    view: MembershipView = field(default_factory=MembershipView)
    promised: int = 0
    applied: int = 0
    formed: int = 0
    """Generation that formed the result of the operation under way, if this member holds it; else 0."""
    committed_view: MembershipView = field(default_factory=MembershipView)
    """The view that formed the last complete operation: its members share the next step's samples."""
    inside: bool = False
    entered_view: MembershipView = field(default_factory=MembershipView)
    """`committed_view` at the moment the last operation was entered."""
    blank: bool = True
    """Whether this member has no state yet; `filled` ends that."""
    streamed: bool = False
    """Whether a member has already streamed most of the state to it."""
    evicted: str = ""
    begun: int = -1
    """The last step that this member began."""
    waiting: ProposeView | None = None
    """A proposal to answer when its step begins."""
    holds: Callable[[int], bool] = lambda generation: False
    """Called when the member leaves its view: returns whether it can read all parts of the operation under way."""
    _between: bool = False
    _confirmed: set[str] = field(default_factory=set)

    @property
    def settled(self) -> bool:
        """Whether this worker is in a view, and no other view is being made."""
        return self.promised == self.view.generation and self.id in self.view and not self.evicted

    def free(self, now: float) -> bool:
        """Whether an operation may be entered or completed."""
        return self.settled and now < self.until

    def renew(self, said: LeaseRenewal) -> None:
        # From the beat's own departure, not the answer's arrival: the coordinator's promise began no earlier than that.
        self.until = max(self.until, said.sent + said.seconds)

    def enter(self) -> int:
        """Begin the next operation, and return its number."""
        assert self.settled
        self.inside, self.entered_view = True, self.committed_view
        return self.applied + 1

    def hold(self) -> ConfirmResult:
        """Note that this member holds the result; return the message for all others."""
        assert self.inside
        assert self.settled
        self.formed = self.view.generation
        return ConfirmResult(member=self.id, generation=self.view.generation, number=self.applied + 1)

    def seen(self) -> None:
        """Note that the result is in memory that all members can read, so all of them hold it."""
        self.hold()
        self._confirmed.update(self.view.members)

    def confirmed(self, said: ConfirmResult) -> None:
        """Note that a peer holds the result, unless it means another view or operation."""
        here = (said.generation, said.number) == (self.view.generation, self.applied + 1)
        if self.settled and here and said.member in self.view:
            self._confirmed.add(said.member)

    def complete(self, now: float) -> bool:
        """Return whether all members hold the result of the operation under way."""
        # Within the lease only: past it the others may have gone on in another view.
        return self.free(now) and bool(self.formed) and self._confirmed >= set(self.view.members) - {self.id}

    def apply(self) -> None:
        """Count the operation under way as complete."""
        self.applied += 1
        self.committed_view, self.formed, self.inside = self.view, 0, False
        self._confirmed.clear()

    def propose(self, said: ProposeView) -> ProposeAck | None:
        """Leave the view, in which nothing completes from here on; None if the proposal is old or for a later step."""
        if said.view.generation < self.promised or said.view.generation <= self.view.generation or self.evicted:
            return None
        # Same answer as before: the position has not changed since this member left.
        if said.view.generation == self.promised:  # repeated, because the answer was lost
            return self._standing()
        # The step is still ahead: train on until there, then leave (see `begin`).
        if said.step > max(0, self.begun) and self.settled:
            self.waiting = said
            return None
        return self._leave(said)

    def begin(self, step: int, admits: bool = True) -> ProposeAck | None:
        """Note that a step is about to begin; return the answer to the proposal that waited for it, if there is one.

        Unless it `admits` newcomers, a proposal with some goes on waiting, and the step is not begun: see `keeps_out`.
        """
        waiting = self.waiting
        if self.keeps_out(step, admits):
            return None
        if waiting is None or step < waiting.step:
            self.begun = step
            return None
        return self._leave(waiting, between=step == waiting.step)

    def keeps_out(self, step: int, admits: bool) -> bool:
        """Return whether newcomers would enter before this step, though it does not admit any."""
        waiting = self.waiting
        if admits or waiting is None or step < waiting.step:
            return False
        return any(member not in self.view for member in waiting.view.members)

    def _leave(self, said: ProposeView, between: bool = False) -> ProposeAck:
        self.promised, self.waiting = said.view.generation, None
        self._between = between
        # `holds` also shows the others that this member has left. Between two steps it must not: this member has
        # completed the last operation, and others may still be completing it.
        if self.inside and self.holds(self.promised) and not self.formed:
            self.formed = self.view.generation
        self._confirmed.clear()
        return self._standing()

    def _standing(self) -> ProposeAck:
        return ProposeAck(
            member=self.id,
            generation=self.promised,
            applied=self.applied,
            formed=self.formed,
            blank=self.blank,
            streamed=self.blank and self.streamed,
            between=self._between,
            committed_generation=self.committed_view.generation,
        )

    def install(self, said: InstallView) -> bool:
        """Enter the new view; return whether the operation under way must be done again."""
        if said.view.generation != self.promised or said.view.generation <= self.view.generation:
            return False
        if self.id in said.fresh:
            self.applied, self.inside, self.blank = said.through, False, True
        # The coordinator has decided that the operation counts, so no confirmation is missing any more.
        elif self.applied < said.through:
            self.apply()
        elif said.committed_view.generation > self.committed_view.generation:
            # Others have begun the step in a view that this member never entered; all must share its samples alike.
            self.committed_view = said.committed_view
        self.view, self.formed, self.waiting = said.view, 0, None
        if said.between:
            self.committed_view = said.view
        self._confirmed.clear()
        return self.inside

    def filled(self, dealt: MembershipView) -> None:
        """Note that the state has come; it was left by an operation of the view `dealt`."""
        self.blank, self.committed_view = False, dealt

    def beat(self, now: float, step: int = 0, period: float = 0.0, doing: str = "", idle: float = 0.0) -> Heartbeat:
        return Heartbeat(
            member=self.id,
            generation=self.view.generation,
            promised=self.promised,
            applied=self.applied,
            step=step,
            period=period,
            idle=idle,
            doing=doing,
            sent=now,
        )
