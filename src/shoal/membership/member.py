"""A worker's side of membership as a pure state machine: when an operation is complete, where the worker stands when a
view ends; and the members it was paired with to stream state.
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
    """The streams of state to and from one worker. Its agent's thread writes, its training thread reads."""

    waits: bool = False
    """Whether this worker is a newcomer that does not want in yet."""
    offer: StreamStateFrom | None = None
    """The member that was asked last to stream its state to this worker."""
    asked: dict[str, tuple[StreamStateTo, float]] = field(default_factory=dict)
    """Newcomers that would like to have the state of this one, and when that was said last."""

    def hear(self, order: Order) -> None:
        """Take in what the coordinator says of it."""
        if isinstance(order, StreamStateFrom):
            self.offer = order
        elif isinstance(order, StreamStateTo):
            self.asked[order.member] = (order, now())


@dataclass
class MemberState:
    """State of one member. `inside` tells whether an operation is under way here."""

    id: str
    until: float = 0.0
    """When the lease ends, on this member's own clock."""
    view: MembershipView = field(default_factory=MembershipView)
    promised: int = 0
    applied: int = 0
    formed: int = 0
    """Generation of the view that formed the result held of the operation under way; 0: none is held."""
    committed_view: MembershipView = field(default_factory=MembershipView)
    """The view that formed the last complete operation: its members share out the next step's samples."""
    inside: bool = False
    entered_view: MembershipView = field(default_factory=MembershipView)
    """`committed_view` when the operation under way began here, or the last one."""
    blank: bool = True
    """Whether it has no state yet; `filled` ends that."""
    streamed: bool = False
    """Whether a member has streamed most of the state to it already."""
    evicted: str = ""
    begun: int = -1
    """The last step that was begun here."""
    waiting: ProposeView | None = None
    """A proposal that is answered when its step begins."""
    holds: Callable[[int], bool] = lambda generation: False
    """Called when this member leaves its view for `generation`: whether it can read all parts of the operation."""
    _between: bool = False
    _confirmed: set[str] = field(default_factory=set)

    @property
    def settled(self) -> bool:
        """Whether this is a member of a view, and no other is being made."""
        return self.promised == self.view.generation and self.id in self.view and not self.evicted

    def free(self, now: float) -> bool:
        """Whether an operation may be entered or completed."""
        return self.settled and now < self.until

    def renew(self, said: LeaseRenewal) -> None:
        self.until = max(self.until, said.sent + said.seconds)

    def enter(self) -> int:
        """Begin the next operation; its number."""
        assert self.settled
        self.inside, self.entered_view = True, self.committed_view
        return self.applied + 1

    def hold(self) -> ConfirmResult:
        """Note that the result is whole here; return what all others must be told."""
        assert self.inside
        assert self.settled
        self.formed = self.view.generation
        return ConfirmResult(member=self.id, generation=self.view.generation, number=self.applied + 1)

    def seen(self) -> None:
        """Note that the result is where all can read it (memory of one host), so that everybody holds it."""
        self.hold()
        self._confirmed.update(self.view.members)

    def confirmed(self, said: ConfirmResult) -> None:
        """Note that a peer holds the result, unless it speaks of another view or operation."""
        here = (said.generation, said.number) == (self.view.generation, self.applied + 1)
        if self.settled and here and said.member in self.view:
            self._confirmed.add(said.member)

    def complete(self, now: float) -> bool:
        """Whether everybody holds the result of the operation under way."""
        return self.free(now) and bool(self.formed) and self._confirmed >= set(self.view.members) - {self.id}

    def apply(self) -> None:
        """Take the operation's result as done."""
        self.applied += 1
        self.committed_view, self.formed, self.inside = self.view, 0, False
        self._confirmed.clear()

    def propose(self, said: ProposeView) -> ProposeAck | None:
        """Leave the view: from here on nothing completes in it. None: the proposal is old, or for a later step."""
        if said.view.generation < self.promised or said.view.generation <= self.view.generation or self.evicted:
            return None
        if said.view.generation == self.promised:  # said again, because the answer was lost
            return self._standing()
        if said.step > max(0, self.begun) and self.settled:
            self.waiting = said
            return None
        return self._leave(said)

    def begin(self, step: int) -> ProposeAck | None:
        """This step is about to begin: the answer to a proposal that waited for it; the step begins after it."""
        waiting = self.waiting
        if waiting is None or step < waiting.step:
            self.begun = step
            return None
        return self._leave(waiting, between=step == waiting.step)

    def _leave(self, said: ProposeView, between: bool = False) -> ProposeAck:
        self.promised, self.waiting = said.view.generation, None
        self._between = between
        # Between two steps nothing is under way here, and others may still complete what this member has completed.
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
        """Enter the new view; whether an operation that was under way has to be done again."""
        if said.view.generation != self.promised or said.view.generation <= self.view.generation:
            return False
        if self.id in said.fresh:
            self.applied, self.inside, self.blank = said.through, False, True
        elif self.applied < said.through:
            self.apply()
        elif (
            said.committed_view.generation > self.committed_view.generation
        ):  # others have begun the step in a view between that and this
            self.committed_view = said.committed_view
        self.view, self.formed, self.waiting = said.view, 0, None
        if said.between:
            self.committed_view = said.view
        self._confirmed.clear()
        return self.inside

    def filled(self, dealt: MembershipView) -> None:
        """The state is here; it was left by an operation of the view `dealt`."""
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
