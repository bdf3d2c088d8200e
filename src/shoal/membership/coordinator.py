"""The coordinator as a pure state machine: reports and the clock go in, effects (write, send) come out.

`roster` knows the members and newcomers, `failure_detector` and `suspicions` judge who is lost, and `view_change` makes
the views. This file takes in reports and lets each of them act.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.membership.bounds import false_number
from shoal.membership.failure_detector import FailureDetector, MembershipRules
from shoal.membership.lease_book import LeaseBook
from shoal.membership.log_entries import LEFT, LEFT_EARLY, Effect, Entry, LogState, SendMessage, training_over
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared
from shoal.membership.proposal import ViewProposal
from shoal.membership.protocol import (
    Heartbeat,
    JoinRefused,
    JoinRequest,
    LeaseRenewal,
    LeaseRequest,
    LeaveRequest,
    MemberEvicted,
    PlanRequest,
    ProcessExited,
    ProposeAck,
    ProposeView,
    Report,
    StreamStateFrom,
    StreamStateTo,
    SuspectMember,
    printable,
)
from shoal.membership.roster import MemberRoster
from shoal.membership.suspicions import CLOSED, SuspicionTable
from shoal.membership.view import MembershipView
from shoal.membership.view_change import ViewChange

STREAM_WITHIN, STREAM_STEPS = 5.0, 4.0
"""Seconds, and steps of the sender, in which a stream of state should begin, or go on."""


class MembershipCoordinator:
    """`hear`, `tick` and the requests return the effects to carry out, in order."""

    def __init__(
        self, rules: MembershipRules, now: float, past: Iterable[Entry] = (), owner: Callable[[str], str] = str
    ) -> None:
        """`past`: the entries of the log; `owner`: the key that a member came with."""
        entries = list(past)
        self.memory, self.roster = LogState(), MemberRoster(owner)
        for entry in entries:
            self.memory.add(entry)
        self.suspicions = SuspicionTable(owner)
        self.views = ViewChange(rules, self.memory, self.roster, self.suspicions, training_over(entries))
        # After a restart the members of the last view are presumed alive until their silence says otherwise.
        infos = dict(zip(self.view.members, self.memory.installed.infos, strict=False))
        for member in self.view.members:
            if member not in self.memory.lost:
                self.roster.add(member, now, infos.get(member))
        self._leases = LeaseBook(self.roster.is_remote, restarted=bool(entries))
        self._detector = FailureDetector(rules, now)

    @property
    def rules(self) -> MembershipRules:
        return self.views.rules

    @property
    def view(self) -> MembershipView:
        return self.views.view

    @property
    def proposal(self) -> ViewProposal | None:
        return self.views.proposal

    @property
    def founding(self) -> bool:
        """Whether workers of other machines may still be in the first view, in which no member has a state."""
        return self.views.founding

    # What comes in

    def hear(self, report: Report, now: float) -> list[Effect]:  # noqa: C901  (one case for each kind of report)
        """Take in a report of a member, or of the launcher."""
        # First of all: an id is never used again, so nothing of a lost member may count.
        if report.member in self.memory.lost:
            return self._dismiss(report)
        false = false_number(report, self.memory.generation, self.roster.is_remote(report.member))
        if false:
            return self.suspect(report.member, false, now)
        match report:
            case JoinRequest():
                self._join(report, now)
            case Heartbeat():
                self._beat(report, now)
            case ProposeAck():
                self._answer(report, now)
            case SuspectMember():
                self._doubt(report, now)
            case LeaveRequest():
                if report.member in self.roster:
                    self.views.lose(report.member, LEFT_EARLY if report.early else LEFT, now)
            case ProcessExited():
                self.views.lose(report.member, report.reason, now)
            case PlanRequest():
                # A remote worker's request counts for nothing: the run's own workers run the same script.
                if report.member in self.view and not self.roster.is_remote(report.member):
                    self.views.plans.hear(report.plan, report.number, self.view)
            case LeaseRequest():
                self._lease(report, now)
        return self._take_effects()

    def switch(self, plan: str, now: float) -> list[Effect]:
        """Switch to the plan the user asks for; one that is current, or asked for already, changes nothing."""
        self.views.plans.ask(plan, self.view)
        return self.tick(now)

    def hear_launcher(self, said: PlanPrepared | PlanUnprepared, now: float) -> list[Effect]:
        """Take in whether what the next plan needs runs."""
        if isinstance(said, PlanPrepared):
            self.views.plans.note_prepared(said)
        else:
            self.views.unprepare(said, now)
        return self.tick(now)

    def expect(self, remote: int, now: float) -> list[Effect]:
        """Let the first view wait for this many workers of other machines, and no more."""
        self.views.rules = replace(self.rules, remote=remote)
        return self.tick(now)

    def suspect(self, member: str, reason: str, now: float) -> list[Effect]:
        """Drop a member that breaks the protocol."""
        self.views.evict(member, reason, now)
        return self._take_effects()

    def tick(self, now: float) -> list[Effect]:
        """Do what is due; called several times a second."""
        for member, why in self._detector.given_up(self.roster.statuses, self.view, now).items():
            if member in self.roster:  # losing the last of the run's own drops the remote workers too
                self.views.lose(member, why, now)
        self._settle_suspicions(now)
        for member, why in self._overdue(now).items():
            self.views.evict(member, why, now)
        if self.views.is_due(now):
            self.views.propose(now)
        self.views.put_off(now)
        self.views.prepare(now)
        self.views.admit(now)
        self.views.remind(now)
        return self._take_effects()

    def _take_effects(self) -> list[Effect]:
        done, self.views.effects = self.views.effects, []
        return done

    # Members that are lost

    def _settle_suspicions(self, now: float) -> None:
        """Drop the member that others suspect with reason, unless a view is being made that may lack it anyway."""
        heard = {member: status.heard for member, status in self.roster.statuses.items()}
        remote = set(filter(self.roster.is_remote, self.roster.statuses))
        doubted = self.suspicions.verdict(self.view, heard, now, remote)
        if doubted is not None and self.proposal is None:
            # A host that refuses connections has a good link, so its next worker need not be kept out for a while.
            if not doubted[1].startswith(CLOSED):
                self.suspicions.given_up(self.roster.machine_of(doubted[0]), now)
            self.views.lose(*doubted, now)

    def _overdue(self, now: float) -> dict[str, str]:
        """Return the remote workers that beat, but keep all others waiting for an answer, and why they are dropped."""
        seconds = self.roster.answer_seconds(self.view, self.rules)
        found = self.roster.overdue(self.view, seconds, now) | self._leases.overdue(self._living, seconds, now)
        proposal = self.proposal
        if proposal is not None and now - proposal.asked > seconds and self.roster.all_remote(proposal.missing):
            found |= dict.fromkeys(proposal.missing, f"it did not answer a proposal within {seconds:.0f} s")
        return found

    def _dismiss(self, report: Report) -> list[Effect]:
        """Tell a lost member that it is out; it may have been frozen, and not know."""
        if isinstance(report, LeaveRequest | ProcessExited):
            return []
        reason = self.memory.lost[report.member]
        return [SendMessage(report.member, MemberEvicted(generation=self.memory.generation, reason=reason))]

    def _doubt(self, doubt: SuspectMember, now: float) -> None:
        """Note a suspicion. Between a remote worker and one of the run's own, the run can spare the remote one."""
        if doubt.member not in self.view or doubt.of not in self.view or doubt.member == doubt.of:
            return
        if not self.roster.is_remote(doubt.member) or self.roster.is_remote(doubt.of):
            self.suspicions.hear(doubt, now)
        elif not doubt.closed and not doubt.reason:  # the launcher reports deaths on the run's own machine itself
            self.suspicions.hear(SuspectMember(member=doubt.of, of=doubt.member), now)

    # Members that join

    def _join(self, report: JoinRequest, now: float) -> None:
        if not self._may_join(report, now):
            return
        status = self.roster.add(report.member, now)
        status.heard, status.info, status.waits = now, report.info, report.waits
        if self.views.joined(now):
            self.views.propose(now)
        elif report.waits and report.member not in self.view:
            self._introduce(report)

    def _may_join(self, report: JoinRequest, now: float) -> bool:
        """Return whether a worker may join, or stay, under the address and key it claims."""
        if self.roster.moved(report):
            why = f"it says it is reached at {report.info.address}, and before it was not"
            self.views.evict(report.member, why, now)
            return False
        objection = self.roster.objection(report)
        if objection:
            self.views.send(report.member, JoinRefused(reason=printable(objection)))
        return not objection

    def _introduce(self, newcomer: JoinRequest) -> None:
        """Pair a newcomer that waits with the first member of the view, which will be its donor in the next one too."""
        sender = next((member for member in self.view.members if member in self.roster), None)
        # Not while a view is being made: its donor, and the generation that fences the stream, may be about to change.
        if self.proposal is None and sender is not None:
            generation, status = self.view.generation, self.roster.statuses[sender]
            patience = STREAM_WITHIN + STREAM_STEPS * (status.beat.period if status.beat is not None else 0.0)
            offer = StreamStateFrom(generation=generation, member=sender, info=status.info, patience=patience)
            request = StreamStateTo(generation=generation, member=newcomer.member, info=newcomer.info)
            self.views.send(sender, request)
            self.views.send(newcomer.member, offer)

    # Members that train

    def _beat(self, beat: Heartbeat, now: float) -> None:
        status = self.roster.statuses.get(beat.member)
        if status is None:
            return
        status.heard, status.beat = now, beat
        behind = beat.member in self.view and beat.generation < self.view.generation and self.proposal is None
        # The first beat that lags starts the clock of `answer`; entering the view stops it.
        status.behind = (now if status.behind is None else status.behind) if behind else None
        self.views.send(beat.member, LeaseRenewal(sent=beat.sent, seconds=self.rules.lease))
        if self.proposal is not None:
            view = self.proposal.view
            if beat.member in view and beat.promised < view.generation:  # the proposal did not reach it
                self.views.send(beat.member, self.proposal.message())
        elif beat.member in self.view:
            self._catch_up(beat, now)

    def _catch_up(self, beat: Heartbeat, now: float) -> None:
        """Bring a member that knows another view than this coordinator to the same one."""
        if beat.promised > self.view.generation:  # a coordinator before this one proposed that view, and was killed
            self.memory.generation = max(self.memory.generation, beat.promised)
            self.views.propose(now)
        # It missed the installation, but it may also have missed the proposal before it: repeat both, in order.
        elif beat.generation < self.view.generation:
            self.views.send(beat.member, ProposeView(view=self.view))
            self.views.send(beat.member, self.memory.installed)

    def _answer(self, ack: ProposeAck, now: float) -> None:
        if ack.member in self.roster:
            self.roster.statuses[ack.member].heard = now
        self.views.answer(ack, now)

    @property
    def _living(self) -> list[str]:
        return [member for member in self.view.members if member in self.roster]

    def _lease(self, request: LeaseRequest, now: float) -> None:
        """Lease samples among the living members: those of a lost one go back into the pool."""
        members = self._living
        if objection := self._leases.objection(request, members):
            self.views.evict(request.member, objection, now)
            return
        for member, answer in self._leases.hear(request, members):
            self.views.send(member, answer)
