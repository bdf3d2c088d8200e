"""The coordinator as a pure state machine: reports and the clock go in, effects (write, send) come out.

`roster` knows who is there, `proposal` how a view is made, `failure_detector` who is lost; here is who is in and out.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.membership.bounds import false_number
from shoal.membership.failure_detector import CLOSED, FailureDetector, MembershipRules, SuspicionTable
from shoal.membership.lease_book import LeaseBook
from shoal.membership.log_entries import (
    LEFT,
    LEFT_EARLY,
    Effect,
    Entry,
    LogState,
    MemberLost,
    SendMessage,
    ViewInstalled,
    ViewProposed,
    WriteEntry,
    training_over,
)
from shoal.membership.plan_requests import PlanRequests, WantedPlan
from shoal.membership.proposal import ViewProposal, entry_step
from shoal.membership.protocol import (
    Heartbeat,
    JoinRefused,
    JoinRequest,
    LeaseRenewal,
    LeaseRequest,
    LeaveRequest,
    MemberEvicted,
    Order,
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
from shoal.membership.view import MembershipView

STREAM_WITHIN, STREAM_STEPS = 5.0, 4.0
"""Seconds, and steps of the sender, in which a stream of state should begin, or go on."""
MISSES = 6
"""Proposals in a row for a step that a remote worker may say it had begun already."""


class MembershipCoordinator:
    """`hear` and `tick` return what has to be done, in order."""

    def __init__(
        self, rules: MembershipRules, now: float, past: Iterable[Entry] = (), owner: Callable[[str], str] = str
    ) -> None:
        """`owner`: the key a member came with."""
        entries = list(past)
        self.rules, self.memory, self.roster = rules, LogState(), MemberRoster(owner)
        for entry in entries:
            self.memory.add(entry)
        self._over = training_over(entries)
        """Whether one of the run's own workers has left because the training has come to its end."""
        infos = dict(zip(self.view.members, self.memory.installed.infos, strict=False))
        for member in self.view.members:
            if member not in self.memory.lost:
                self.roster.add(member, now, infos.get(member))
        self.suspicions = SuspicionTable(owner)
        self.proposal: ViewProposal | None = None
        self._first_join: float | None = None
        self._missed = 0
        self._installs = 0
        self._plans = PlanRequests()
        self._leases = LeaseBook(self.roster.is_remote, restarted=bool(entries))
        self._ahead = rules.ahead
        self._detector = FailureDetector(rules, now)
        self._effects: list[Effect] = []

    @property
    def view(self) -> MembershipView:
        return self.memory.installed.view

    def hear(self, report: Report, now: float) -> list[Effect]:  # noqa: C901  (one case for each kind of report)
        """Take a report in."""
        if report.member in self.memory.lost:
            return self._dismiss(report)
        false = false_number(report, self.memory.generation, self.roster.is_remote(report.member))
        if false:
            self._suspect(report.member, false, now)
            return self._done()
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
                    self._lose(report.member, LEFT_EARLY if report.early else LEFT, now)
            case ProcessExited():
                self._lose(report.member, report.reason, now)
            case PlanRequest():
                if report.member in self.view and not self.roster.is_remote(report.member):
                    self._plans.hear(report.plan, report.number, self.view)
            case LeaseRequest():
                self._lease(report, now)
        return self._done()

    @property
    def _present(self) -> list[str]:
        return [member for member in self.view.members if member in self.roster]

    def _lease(self, request: LeaseRequest, now: float) -> None:
        """Give samples, among the members that are there: who is lost holds none any more."""
        members = self._present
        if objection := self._leases.objection(request, members):
            self._suspect(request.member, objection, now)
            return
        for member, answer in self._leases.hear(request, members):
            self._send(member, answer)

    def switch(self, plan: str, now: float) -> list[Effect]:
        """Take in that the user wants another plan; one that is there already, or asked for, changes nothing."""
        self._plans.ask(plan, self.view)
        return self.tick(now)

    def suspect(self, member: str, reason: str, now: float) -> list[Effect]:
        """Take in that a member breaks the protocol."""
        self._suspect(member, reason, now)
        return self._done()

    def _suspect(self, member: str, reason: str, now: float) -> None:
        """Drop a member, and keep its machine out for a while if it is remote."""
        if member in self.roster:
            if self.roster.is_remote(member):
                self.suspicions.given_up(self.roster.machine_of(member), now)
            self._lose(member, printable(reason), now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due; called several times a second."""
        for member, why in self._detector.given_up(self.roster.statuses, self.view, now).items():
            if member in self.roster:  # remote workers go with the last of the run's own
                self._lose(member, why, now)
        heard = {member: status.heard for member, status in self.roster.statuses.items()}
        remote = set(filter(self.roster.is_remote, self.roster.statuses))
        doubted = self.suspicions.verdict(self.view, heard, now, remote)
        if doubted is not None and self.proposal is None:
            if not doubted[1].startswith(CLOSED):  # a host that says so at once has a good link
                self.suspicions.given_up(self.roster.machine_of(doubted[0]), now)
            self._lose(*doubted, now)
        for member, why in self._overdue(now).items():
            self._suspect(member, why, now)
        if self._due(now):
            self._propose(now)
        self._admit(now)
        self._remind(now)
        return self._done()

    def _done(self) -> list[Effect]:
        done, self._effects = self._effects, []
        return done

    def _overdue(self, now: float) -> dict[str, str]:
        """Return the remote workers that beat, but keep all others waiting for an answer, and why they are given up."""
        seconds = self.roster.answer_seconds(self.view, self.rules)
        found = self.roster.overdue(self.view, seconds, now) | self._leases.overdue(self._present, seconds, now)
        proposal = self.proposal
        if proposal is not None and now - proposal.asked > seconds and self.roster.all_remote(proposal.missing):
            found |= dict.fromkeys(proposal.missing, f"it did not answer a proposal within {seconds:.0f} s")
        return found

    def _dismiss(self, report: Report) -> list[Effect]:
        if isinstance(report, LeaveRequest | ProcessExited):
            return []
        return [
            SendMessage(
                report.member, MemberEvicted(generation=self.memory.generation, reason=self.memory.lost[report.member])
            )
        ]

    def _join(self, report: JoinRequest, now: float) -> None:
        if not self._may_join(report, now):
            return
        status = self.roster.add(report.member, now)
        status.heard, status.info, status.waits = now, report.info, report.waits
        self._first_join = now if self._first_join is None else self._first_join
        if self._due(now):
            self._propose(now)
        elif report.waits and report.member not in self.view:
            self._introduce(report)

    def _may_join(self, report: JoinRequest, now: float) -> bool:
        """Return whether one may come, or stay, as it says that it is reached."""
        if self.roster.moved(report):
            self._suspect(report.member, f"it says it is reached at {report.info.address}, and before it was not", now)
            return False
        objection = self.roster.objection(report)
        if objection:
            self._send(report.member, JoinRefused(reason=printable(objection)))
        return not objection

    def _introduce(self, newcomer: JoinRequest) -> None:
        """Pair one that waits with the first member of the view, which is the donor of the next view too."""
        sender = next((member for member in self.view.members if member in self.roster), None)
        if self.proposal is None and sender is not None:
            generation, status = self.view.generation, self.roster.statuses[sender]
            patience = STREAM_WITHIN + STREAM_STEPS * (status.beat.period if status.beat is not None else 0.0)
            offer = StreamStateFrom(generation=generation, member=sender, info=status.info, patience=patience)
            request = StreamStateTo(generation=generation, member=newcomer.member, info=newcomer.info)
            self._send(sender, request)
            self._send(newcomer.member, offer)

    def _beat(self, beat: Heartbeat, now: float) -> None:
        status = self.roster.statuses.get(beat.member)
        if status is None:
            return
        status.heard, status.beat = now, beat
        behind = beat.member in self.view and beat.generation < self.view.generation and self.proposal is None
        status.behind = (now if status.behind is None else status.behind) if behind else None
        self._send(beat.member, LeaseRenewal(sent=beat.sent, seconds=self.rules.lease))
        if self.proposal is not None:
            view = self.proposal.view
            if beat.member in view and beat.promised < view.generation:  # it was away when it was asked
                self._send(beat.member, self.proposal.message())
        elif beat.member in self.view:
            self._catch_up(beat, now)

    def _catch_up(self, beat: Heartbeat, now: float) -> None:
        if beat.promised > self.view.generation:  # asked by a proposal that died with a coordinator before me
            self.memory.generation = max(self.memory.generation, beat.promised)
            self._propose(now)
        elif beat.generation < self.view.generation:
            self._send(beat.member, ProposeView(view=self.view))
            self._send(beat.member, self.memory.installed)

    def _doubt(self, doubt: SuspectMember, now: float) -> None:
        """Where a remote worker and one of the run's own do not hear each other, the run can spare the remote one."""
        if doubt.member not in self.view or doubt.of not in self.view or doubt.member == doubt.of:
            return
        if not self.roster.is_remote(doubt.member) or self.roster.is_remote(doubt.of):
            self.suspicions.hear(doubt, now)
        elif not doubt.closed and not doubt.reason:  # of deaths on the run's own machine the launcher tells
            self.suspicions.hear(SuspectMember(member=doubt.of, of=doubt.member), now)

    def _answer(self, ack: ProposeAck, now: float) -> None:
        if ack.member in self.roster:
            self.roster.statuses[ack.member].heard = now
        proposal = self.proposal
        if proposal is None or ack.generation != proposal.view.generation or ack.member not in proposal.view:
            return
        if proposal.step and not ack.blank and not ack.between:
            # It heard of it too late, or had left for a proposal of another coordinator: all cannot stand between the
            # same two steps, and a worker that waits for that step would wait for this one too.
            self._ahead = min(2 * self._ahead, 2**MISSES * self.rules.ahead)
            status = self.roster.statuses[ack.member]
            status.missed += 1
            if status.info.remote and status.missed > MISSES:
                self._suspect(ack.member, f"it had begun the step of {status.missed} proposals in a row", now)
            else:
                self._propose(now)
            return
        if not self.roster.is_remote(ack.member) and ack.member not in proposal.acks:
            proposal.asked = now
        proposal.acks[ack.member] = ack
        if len(proposal.acks) == len(proposal.view):
            self._close(proposal, now)

    def _close(self, proposal: ViewProposal, now: float) -> None:
        """Install the view, now that all have answered, unless a remote worker's answer cannot be true."""
        liars = proposal.liars(self.roster.is_remote)
        for member, why in liars.items():
            self._drop(member, why)
        if liars:
            self._propose(now)
        else:
            self._install(proposal)

    def _lose(self, member: str, reason: str, now: float) -> None:
        self._missed += member not in self.view and not self.roster.is_remote(member)
        self._drop(member, reason)
        if member in self.view or (self.proposal is not None and member in self.proposal.view):
            self._propose(now)

    def _drop(self, member: str, reason: str) -> None:
        self._over |= reason == LEFT and not self.roster.is_remote(member)
        self.roster.statuses.pop(member, None)
        lost = MemberLost(member=member, reason=reason)
        self.memory.add(lost)
        self._effects += [
            WriteEntry(lost),
            SendMessage(member, MemberEvicted(generation=self.memory.generation, reason=reason)),
        ]

    @property
    def _begun(self) -> bool:
        """Return whether this coordinator has made a view, or found one alive."""
        return self._installs > 0 or any(member in self.roster for member in self.view.members)

    @property
    def founding(self) -> bool:
        """Whether workers of other machines may still be in the first view, which nobody enters with a state."""
        return self.rules.remote > 0 and not self._begun

    def expect(self, remote: int, now: float) -> list[Effect]:
        """Let the first view wait for this number of workers of other machines, and no more."""
        self.rules = replace(self.rules, remote=remote)
        return self.tick(now)

    def _due(self, now: float) -> bool:
        """Return whether a view has to be made though nobody asks for one."""
        if self.proposal is not None or not self.roster.statuses:
            return False
        if not self._begun:
            waited = now - self._first_join if self._first_join is not None else 0.0
            own = len(self.roster.own)
            remote = len(self.roster.statuses) - own
            complete = own + self._missed >= self.rules.members and remote >= self.rules.remote
            return own > 0 and (complete or waited > self.rules.gather)
        # the coordinator before me was killed between writing that somebody is lost and saying so
        return any(member not in self.roster for member in self.view.members)

    def _propose(self, now: float) -> None:
        """Propose a view of those that are left; of the newcomers only if nobody is left whom that would disturb."""
        stay = tuple(member for member in self.view.members if member in self.roster)
        if self._orphaned(stay):
            for member in stay:
                self._drop(member, "no worker of the machine the run began on is left")
            stay = ()
        # the first by name, so that ranks do not depend on who was quicker
        first = tuple(self.roster.statuses) if self.founding else self.roster.own
        self._make(stay or tuple(sorted(first, key=lambda member: (len(member), member))), 0, now)

    def _orphaned(self, stay: tuple[str, ...]) -> bool:
        """Return whether nobody is left who keeps ledger and checkpoints, though there is more to be trained."""
        return not self._over and self.roster.all_remote(stay)

    def _admit(self, now: float) -> None:
        """Switch the plan, or let newcomers in, when all begin the same step: so far ahead that all hear of it."""
        new = tuple(
            member
            for member, status in self.roster.statuses.items()
            if member not in self.view
            and not status.waits
            and not self.suspicions.kept_out(self.roster.machine_of(member), now)
        )
        wanted = self._plans.wanted if not self._over else None
        if self.proposal is not None or not (new or wanted) or not self.view.members:
            return
        beats = self.roster.settled_beats(self.view)
        if len(beats) == len(self.view):  # or somebody has not even entered this view yet
            own = [beat for beat in beats if not self.roster.is_remote(beat.member)] or beats
            members = self.view.members + (() if wanted else new)
            self._make(members, entry_step(own, self._ahead), now, wanted)

    def _make(self, members: tuple[str, ...], step: int, now: float, wanted: WantedPlan | None = None) -> None:
        """Propose a view; `wanted`: its plan, else that of the view before, and of nobody's state the first."""
        goes_on = any(member in self.view for member in members)
        plan, switches = wanted or ((self.view.plan, self.view.switches) if goes_on else ("", 0))
        # remote workers last: worker 0 writes ledger and checkpoints, and must see the run's folder
        ranked = tuple(sorted(members, key=self.roster.is_remote))
        view = MembershipView(self.memory.generation + 1, ranked, plan, switches)
        self.memory.generation = view.generation
        proposal = ViewProposal(view, step, now, now)
        self.proposal = proposal if members else None
        self._effects.append(WriteEntry(ViewProposed(generation=view.generation)))
        self._send_all(view, proposal.message())

    def _install(self, proposal: ViewProposal) -> None:
        members = proposal.view.members
        if proposal.step:
            self._ahead = self.rules.ahead
            for member in members:
                self.roster.statuses[member].missed = 0
        infos = [self.roster.statuses[member].info for member in members]
        installed = ViewInstalled(install=proposal.to_install(infos, self.memory.shared))
        self.proposal = None
        self.suspicions.clear()
        self._installs += 1
        self.memory.add(installed)
        self._plans.made(proposal.view)
        self._effects.append(WriteEntry(installed))
        self._send_all(proposal.view, installed.install)

    def _remind(self, now: float) -> None:
        """Ask again what was not answered: messages get lost."""
        proposal = self.proposal
        if proposal is not None and now - proposal.said >= self.rules.repeat:
            proposal.said = now
            self._send_all(proposal.view, proposal.message(proposal.missing))

    def _send(self, member: str, order: Order) -> None:
        self._effects.append(SendMessage(member, order))

    def _send_all(self, view: MembershipView, order: Order) -> None:
        for member in view.members:
            self._send(member, order)
