"""A worker's side of membership: when an operation is complete, and where the worker stands when a view ends.

An operation is anything all members do together: the exchange of a step, a gather. They are numbered, and each is

    enter ── every member's part arrives ── hold the result ── confirm to all ── all have confirmed ── complete

Nobody completes an operation before everybody holds its result. So when a view ends in the middle of one, whoever
holds the result may keep it if anybody completed it, or if all that are left hold it; otherwise it is done again by
those that are left, from what each handed in, which is still there. The coordinator decides (`decide.py`).

A member trains on without a coordinator for as long as its lease lasts: after that, others may have been told that
it is lost, so it completes nothing more until it is heard again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.cluster.membership.messages import Beat, Confirm, Install, Lease, Propose, Standing
from shoal.cluster.membership.view import View


@dataclass
class Member:
    """State of one member. `inside` tells whether an operation is under way here."""

    id: str
    until: float = 0.0
    """When the lease ends, on this member's own clock."""
    view: View = field(default_factory=View)
    promised: int = 0
    applied: int = 0
    formed: int = 0
    """Epoch of the view that formed the result held of the operation under way; 0: none is held."""
    dealt: View = field(default_factory=View)
    """The view that formed the last complete operation: its members share out the next step's samples."""
    inside: bool = False
    blank: bool = True
    """Has no state yet; whoever brings it says `filled`."""
    lent: bool = False
    """Has most of it from somebody's loan."""
    evicted: str = ""
    begun: int = -1
    """The last step that was begun here."""
    waiting: Propose | None = None
    """A proposal that is answered when its step begins."""
    holds: Callable[[int], bool] = lambda epoch: False
    """Called when this member leaves its view for one of `epoch`: whether it can read all parts of the operation."""
    _between: bool = False
    _confirmed: set[str] = field(default_factory=set)

    @property
    def settled(self) -> bool:
        """Whether this is a member of a view, and no other is being made."""
        return self.promised == self.view.epoch and self.id in self.view and not self.evicted

    def free(self, now: float) -> bool:
        """Whether an operation may be entered or completed."""
        return self.settled and now < self.until

    def renew(self, said: Lease) -> None:
        self.until = max(self.until, said.sent + said.seconds)

    def enter(self) -> int:
        """Begin the next operation; its number."""
        assert self.settled
        self.inside = True
        return self.applied + 1

    def hold(self) -> Confirm:
        """The result is whole here: what all others must be told."""
        assert self.inside
        assert self.settled
        self.formed = self.view.epoch
        return Confirm(member=self.id, epoch=self.view.epoch, number=self.applied + 1)

    def seen(self) -> None:
        """The result is where all can read it (memory of one host), so everybody holds it."""
        self.hold()
        self._confirmed.update(self.view.members)

    def confirmed(self, said: Confirm) -> None:
        """A peer holds the result; of another view or operation it says nothing."""
        here = (said.epoch, said.number) == (self.view.epoch, self.applied + 1)
        if self.settled and here and said.member in self.view:
            self._confirmed.add(said.member)

    def complete(self, now: float) -> bool:
        """Whether everybody holds the result of the operation under way."""
        return self.free(now) and bool(self.formed) and self._confirmed >= set(self.view.members) - {self.id}

    def apply(self) -> None:
        """Take the operation's result as done."""
        self.applied += 1
        self.dealt, self.formed, self.inside = self.view, 0, False
        self._confirmed.clear()

    def propose(self, said: Propose) -> Standing | None:
        """Leave the view: from here on nothing completes in it. None: the proposal is old, or for a later step."""
        if said.view.epoch < self.promised or said.view.epoch <= self.view.epoch or self.evicted:
            return None
        if said.view.epoch == self.promised:  # said again, because the answer was lost
            return self._standing()
        if said.step > max(0, self.begun) and self.settled:
            self.waiting = said
            return None
        return self._leave(said)

    def begin(self, step: int) -> Standing | None:
        """This step is about to begin: the answer to a proposal that waited for it; the step begins after it."""
        waiting = self.waiting
        if waiting is None or step < waiting.step:
            self.begun = step
            return None
        return self._leave(waiting, between=step == waiting.step)

    def _leave(self, said: Propose, between: bool = False) -> Standing:
        self.promised, self.waiting = said.view.epoch, None
        self._between = between
        # Between two steps nothing is under way here, and others may still complete what this member has completed.
        if self.inside and self.holds(self.promised) and not self.formed:
            self.formed = self.view.epoch
        self._confirmed.clear()
        return self._standing()

    def _standing(self) -> Standing:
        return Standing(
            member=self.id,
            epoch=self.promised,
            applied=self.applied,
            formed=self.formed,
            blank=self.blank,
            lent=self.blank and self.lent,
            between=self._between,
            dealt=self.dealt.epoch,
        )

    def install(self, said: Install) -> bool:
        """Enter the new view; whether an operation that was under way has to be done again."""
        if said.view.epoch != self.promised or said.view.epoch <= self.view.epoch:
            return False
        if self.id in said.fresh:
            self.applied, self.inside, self.blank = said.through, False, True
        elif self.applied < said.through:
            self.apply()
        elif said.dealt.epoch > self.dealt.epoch:  # others have begun the step in a view between that and this
            self.dealt = said.dealt
        self.view, self.formed, self.waiting = said.view, 0, None
        if said.between:
            self.dealt = said.view
        self._confirmed.clear()
        return self.inside

    def filled(self, dealt: View) -> None:
        """The state is here; it was left by an operation of the view `dealt`."""
        self.blank, self.dealt = False, dealt

    def beat(self, now: float, step: int = 0, period: float = 0.0, doing: str = "", idle: float = 0.0) -> Beat:
        return Beat(
            member=self.id,
            epoch=self.view.epoch,
            promised=self.promised,
            applied=self.applied,
            step=step,
            period=period,
            idle=idle,
            doing=doing,
            sent=now,
        )
