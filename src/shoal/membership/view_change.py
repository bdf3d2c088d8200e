"""How the coordinator changes the view: when a new one is due, whom it has, and when it is installed.

    lose | join | admit ─▶ propose ─▶ ProposeView to all ─▶ answer, of each member ─▶ close ─▶ InstallView to all
                              ▲                                                         │
                              └──── somebody was lost, came too late, or lied ◀─────────┘

A pure state machine: what has to be written and sent is collected in `effects`, in order.
"""

from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import (
    LEFT,
    AskLauncher,
    Effect,
    LogState,
    MemberLost,
    SendMessage,
    ViewInstalled,
    ViewProposed,
    WriteEntry,
)
from shoal.membership.plan_requests import PlanRequests, PlanUnprepared, WantedPlan
from shoal.membership.proposal import ViewProposal, entry_step
from shoal.membership.protocol import MemberEvicted, Order, ProposeAck, printable
from shoal.membership.roster import MemberRoster
from shoal.membership.suspicions import SuspicionTable
from shoal.membership.view import MembershipView

MOST_MISSES = 6
"""Proposals in a row that a remote worker may answer with "I had begun that step already" before it is dropped."""
LONGEST_PAUSE = 60.0
"""Seconds after which a slow newcomer is asked again at the latest."""


class ViewChange:
    """The view of one run, and the proposal that may replace it."""

    def __init__(
        self, rules: MembershipRules, memory: LogState, roster: MemberRoster, suspicions: SuspicionTable, over: bool
    ) -> None:
        """`over`: one of the run's own workers has left because the training has come to its end."""
        self.rules, self.memory, self.roster, self.suspicions = rules, memory, roster, suspicions
        self.proposal: ViewProposal | None = None
        self.plans = PlanRequests(rules.prepares)
        self.effects: list[Effect] = []
        self._over = over
        self._first_join: float | None = None
        self._missed = 0
        """The run's own workers that died before the first view: it must not wait for them."""
        self._installs = 0
        self._ahead = rules.ahead

    @property
    def view(self) -> MembershipView:
        return self.memory.installed.view

    # Whether a view is due

    @property
    def begun(self) -> bool:
        """Whether this coordinator has made a view, or found one with living members in its log."""
        return self._installs > 0 or any(member in self.roster for member in self.view.members)

    @property
    def founding(self) -> bool:
        """Whether workers of other machines may still be in the first view, in which no member has a state."""
        return self.rules.remote > 0 and not self.begun

    def joined(self, now: float) -> bool:
        """Note that a worker has asked to join; return whether that makes a view due."""
        # `gather` runs from here, not from the coordinator's start: a launcher may take long to fork its workers.
        self._first_join = now if self._first_join is None else self._first_join
        return self.is_due(now)

    def is_due(self, now: float) -> bool:
        """Return whether a view must be made though no member was lost just now and none waits to enter."""
        if self.proposal is not None or not self.roster.statuses:
            return False
        if not self.begun:
            waited = now - self._first_join if self._first_join is not None else 0.0
            own = len(self.roster.own)
            remote = len(self.roster.statuses) - own
            complete = own + self._missed >= self.rules.members and remote >= self.rules.remote
            return own > 0 and (complete or waited > self.rules.gather)
        # The previous coordinator may have been killed between logging a loss and proposing the view without it.
        return any(member not in self.roster for member in self.view.members)

    # Proposing

    def propose(self, now: float) -> None:
        """Propose a view of the members that are left; newcomers are in it only if no member is left to disturb."""
        stay = tuple(member for member in self.view.members if member in self.roster)
        if self._orphaned(stay):
            for member in stay:
                self._drop(member, "no worker of the machine the run began on is left")
            stay = ()
        first = tuple(self.roster.statuses) if self.founding else self.roster.own
        # By name, so that ranks do not depend on which worker was quicker; the shorter first, so that w2 precedes w10.
        self._make(stay or tuple(sorted(first, key=lambda member: (len(member), member))), 0, now)

    def _orphaned(self, stay: tuple[str, ...]) -> bool:
        """Return whether no worker is left that keeps the ledger and checkpoints, though training is not over."""
        return not self._over and self.roster.all_remote(stay)

    def admit(self, now: float) -> None:
        """Propose a view with newcomers, or with another plan, from a step so far ahead that all hear of it in time."""
        new = tuple(
            member
            for member, status in self.roster.statuses.items()
            if member not in self.view
            and not status.waits
            and now >= status.not_before
            and not self.suspicions.kept_out(self.roster.machine_of(member), now)
        )
        wanted = self.plans.ready if not self._over else None
        if self.proposal is not None or not (new or wanted) or not self.view.members:
            return
        beats = self.roster.settled_beats(self.view)
        if len(beats) == len(self.view):  # else a member has not entered this view yet, and could not enter the next
            own = [beat for beat in beats if not self.roster.is_remote(beat.member)] or beats
            # One change at a time: newcomers wait for the view after the switch, and get the plan with it.
            members = self.view.members + (() if wanted else new)
            self._make(members, entry_step(own, self._ahead), now, wanted)

    def prepare(self, now: float) -> None:
        """Ask the launcher for what the plan that is wanted needs."""
        if (question := self.plans.next_question(now, self.rules.repeat)) is not None:
            self.effects.append(AskLauncher(question))

    def unprepare(self, said: PlanUnprepared, now: float) -> None:
        """What a plan needs has ended: propose again, without it, if a view with it is not installed yet."""
        self.plans.note_unprepared(said)
        proposed = self.proposal.view.switches if self.proposal is not None else 0
        if proposed == said.number > self.view.switches:
            self.propose(now)

    def _make(self, members: tuple[str, ...], step: int, now: float, wanted: WantedPlan | None = None) -> None:
        """Propose a view with the plan `wanted`, else with the current one; the first plan if no member has a state."""
        goes_on = any(member in self.view for member in members)
        if self.view.members and not goes_on:
            self.plans.drop()  # their numbers follow plans of a training that is lost
        plan, switches = wanted or ((self.view.plan, self.view.switches) if goes_on else ("", 0))
        # Remote workers come last: worker 0 writes ledger and checkpoints, so it must see the run's folder.
        ranked = tuple(sorted(members, key=self.roster.is_remote))
        view = MembershipView(self.memory.generation + 1, ranked, plan, switches)
        self.memory.generation = view.generation
        proposal = ViewProposal(view, step, now, now)
        self.proposal = proposal if members else None
        self.effects.append(WriteEntry(ViewProposed(generation=view.generation)))
        self.send_all(view, proposal.message())

    def remind(self, now: float) -> None:
        """Repeat the proposal to those that have not answered it, because messages get lost."""
        proposal = self.proposal
        if proposal is not None and now - proposal.said >= self.rules.repeat:
            proposal.said = now
            self.send_all(proposal.view, proposal.message(proposal.missing))

    # Answers

    def answer(self, ack: ProposeAck, now: float) -> None:
        """Take in a member's answer to the proposal; the last one closes it."""
        proposal = self.proposal
        if proposal is None or ack.generation != proposal.view.generation or ack.member not in proposal.view:
            return
        if proposal.step and not ack.blank and not ack.between:
            self._answered_late(ack.member, now)
            return
        if not self.roster.is_remote(ack.member) and ack.member not in proposal.acks:
            proposal.asked = now
        proposal.acks[ack.member] = ack
        if len(proposal.acks) == len(proposal.view):
            self._close(proposal, now)
        elif proposal.step and proposal.standing is None and not set(proposal.missing) & set(self.view.members):
            proposal.standing = now

    def put_off(self, now: float) -> None:
        """Go on without newcomers for whose answer all members have been standing still; they are asked again later.

        Those that train stand still from the agreed step until all have answered. A newcomer has known of the
        proposal for as long as they have, and its agent needs milliseconds, so its machine is short of time.
        """
        proposal = self.proposal
        if proposal is None or proposal.standing is None or now - proposal.standing < self.rules.late:
            return
        slow = [member for member in proposal.missing if member in self.roster]
        for member in slow:
            status = self.roster.statuses[member]
            status.put_off += 1
            # Doubled, so that one slow machine costs the others less and less.
            status.not_before = now + min(self.rules.later * 2 ** (status.put_off - 1), LONGEST_PAUSE)
            if status.info.remote and status.put_off > MOST_MISSES:
                self._drop(member, f"it was too slow to answer {status.put_off} proposals in a row")
        self.propose(now)

    def _answered_late(self, member: str, now: float) -> None:
        """Propose again: this member had begun the step before which all were to stand.

        The proposal reached it too late, or it had left its view for a proposal of an earlier coordinator. Not all
        members can stand between the same two steps any more, and one that waits for that step would wait for ever.
        """
        # Twice as far ahead each time: the link, or the step, may take longer than was thought.
        self._ahead = min(2 * self._ahead, 2**MOST_MISSES * self.rules.ahead)
        status = self.roster.statuses[member]
        status.missed += 1
        if status.info.remote and status.missed > MOST_MISSES:
            self.evict(member, f"it had begun the step of {status.missed} proposals in a row", now)
        else:
            self.propose(now)

    def _close(self, proposal: ViewProposal, now: float) -> None:
        """Install the view, now that all have answered, unless a remote worker's answer cannot be true."""
        liars = proposal.liars(self.roster.is_remote)
        for member, why in liars.items():
            self._drop(member, why)
        if liars:
            self.propose(now)
        else:
            self._install(proposal)

    def _install(self, proposal: ViewProposal) -> None:
        members = proposal.view.members
        if proposal.step:
            self._ahead = self.rules.ahead
            for member in members:
                self.roster.statuses[member].missed = self.roster.statuses[member].put_off = 0
        infos = [self.roster.statuses[member].info for member in members]
        installed = ViewInstalled(install=proposal.to_install(infos, self.memory.shared))
        self.proposal = None
        # What members said of each other in the old view proves nothing in the new one, whose links may be others.
        self.suspicions.clear()
        self._installs += 1
        self.memory.add(installed)
        self.plans.made(proposal.view)
        self.effects.append(WriteEntry(installed))
        self.send_all(proposal.view, installed.install)

    # Losing members

    def evict(self, member: str, reason: str, now: float) -> None:
        """Drop a member that breaks the protocol, and keep its machine out for a while if it is remote."""
        if member in self.roster:
            if self.roster.is_remote(member):
                self.suspicions.given_up(self.roster.machine_of(member), now)
            self.lose(member, printable(reason), now)

    def lose(self, member: str, reason: str, now: float) -> None:
        """Drop a member, and propose a view without it if it was in the current or the proposed one."""
        # Only counted before the first view; later it has no effect.
        self._missed += member not in self.view and not self.roster.is_remote(member)
        self._drop(member, reason)
        if member in self.view or (self.proposal is not None and member in self.proposal.view):
            self.propose(now)

    def _drop(self, member: str, reason: str) -> None:
        self._over |= reason == LEFT and not self.roster.is_remote(member)
        self.roster.statuses.pop(member, None)
        lost = MemberLost(member=member, reason=reason)
        self.memory.add(lost)
        self.effects.append(WriteEntry(lost))
        self.send(member, MemberEvicted(generation=self.memory.generation, reason=reason))

    # Effects

    def send(self, member: str, order: Order) -> None:
        self.effects.append(SendMessage(member, order))

    def send_all(self, view: MembershipView, order: Order) -> None:
        for member in view.members:
            self.send(member, order)
