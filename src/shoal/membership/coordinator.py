"""What is complete when a view ends: the one decision everything else hangs on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from shoal.membership.bounds import false_number, forged, plate_objection, step_seconds
from shoal.membership.failure_detector import (
    CLOSED,
    FailureDetector,
    MembershipRules,
    MemberStatus,
    SuspicionTable,
    address,
)
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
)
from shoal.membership.protocol import (
    Heartbeat,
    InstallView,
    JoinRefused,
    JoinRequest,
    LeaseRenewal,
    LeaveRequest,
    MemberEvicted,
    MemberInfo,
    ProcessExited,
    ProposeAck,
    ProposeView,
    Report,
    StreamStateFrom,
    StreamStateTo,
    SuspectMember,
    printable,
)
from shoal.membership.view import MembershipView


def decide(standings: list[ProposeAck]) -> int:
    """How many operations are complete, for all that stay, when they leave a view.

    Whoever is behind the others holds the result: nobody completes what not everybody holds. If all are equally far
    and all hold the result of the next operation, formed in one view, it counts too, though nobody had got there.
    """
    if not standings:
        return 0
    furthest = max(s.applied for s in standings)
    level = all(s.applied == furthest for s in standings)
    held = {s.formed for s in standings}
    return furthest + (level and len(held) == 1 and 0 not in held)


LENT_WITHIN, LENT_STEPS = 5.0, 4.0
"""Seconds, and steps of the lender, in which a loan should begin, or go on."""
MISSES = 6
"""Proposals in a row for a step that a remote worker may say it had begun already."""
SHORTEST_STEP = 1e-3


@dataclass
class ViewProposal:
    """A view in the making."""

    view: MembershipView
    step: int
    said: float
    asked: float
    """When the last of the run's own workers answered, or when all were asked."""
    standings: dict[str, ProposeAck] = field(default_factory=dict)


class MembershipCoordinator:
    """`hear` and `tick` return what has to be done, in order."""

    def __init__(
        self, rules: MembershipRules, now: float, past: Iterable[Entry] = (), owner: Callable[[str], str] = str
    ) -> None:
        """`owner`: the key a member came with."""
        self.rules, self.memory, self._owner = rules, LogState(), owner
        self._over = False
        """Whether one of the run's own workers has left because the training has come to its end."""
        remote: set[str] = set()
        for entry in past:
            self.memory.add(entry)
            if isinstance(entry, ViewInstalled):
                plates_there = zip(entry.install.view.members, entry.install.plates, strict=False)
                remote |= {member for member, plate in plates_there if plate.guest}
            elif isinstance(entry, MemberLost):
                self._over |= entry.reason == LEFT and entry.member not in remote
        plates = dict(zip(self.view.members, self.memory.installed.plates, strict=False))
        self.seats = {
            member: MemberStatus(now, plate=plates.get(member, MemberInfo()))
            for member in self.view.members
            if member not in self.memory.lost
        }
        self.doubts = SuspicionTable(owner)
        self.proposal: ViewProposal | None = None
        self._came: float | None = None
        self._missed = 0
        self._installs = 0
        self._ahead = rules.ahead
        self._silence = FailureDetector(rules, now)
        self._do: list[Effect] = []

    @property
    def view(self) -> MembershipView:
        return self.memory.installed.view

    def hear(self, report: Report, now: float) -> list[Effect]:
        """Take a report in."""
        if report.member in self.memory.lost:
            return self._dismiss(report)
        false = false_number(report, self.memory.epoch, self._guest(report.member))
        if false:
            self._suspect(report.member, false, now)
            return self._done()
        match report:
            case JoinRequest():
                self._hello(report, now)
            case Heartbeat():
                self._beat(report, now)
            case ProposeAck():
                self._standing(report, now)
            case SuspectMember():
                self._doubt(report, now)
            case LeaveRequest():
                if report.member in self.seats:
                    self._lose(report.member, LEFT_EARLY if report.early else LEFT, now)
            case ProcessExited():
                self._lose(report.member, report.reason, now)
        return self._done()

    def suspect(self, member: str, reason: str, now: float) -> list[Effect]:
        """A member breaks the protocol."""
        self._suspect(member, reason, now)
        return self._done()

    def _suspect(self, member: str, reason: str, now: float) -> None:
        """It is out, and its machine is kept out for a while."""
        if member in self.seats:
            if self._guest(member):
                self.doubts.given_up(self._machine(member), now)
            self._lose(member, printable(reason), now)

    def tick(self, now: float) -> list[Effect]:
        """Time passes; several times a second."""
        for member, why in self._silence.given_up(self.seats, self.view, now).items():
            if member in self.seats:  # guests go with the last of the run's own
                self._lose(member, why, now)
        heard = {member: seat.heard for member, seat in self.seats.items()}
        remote = {member for member in self.seats if self._guest(member)}
        doubted = self.doubts.verdict(self.view, heard, now, remote)
        if doubted is not None and self.proposal is None:
            if not doubted[1].startswith(CLOSED):  # a host that says so at once has a good link
                self.doubts.given_up(self._machine(doubted[0]), now)
            self._lose(*doubted, now)
        for member, why in self._overdue(now).items():
            self._suspect(member, why, now)
        if self._due(now):
            self._propose(now)
        self._admit(now)
        self._remind(now)
        return self._done()

    def _done(self) -> list[Effect]:
        done, self._do = self._do, []
        return done

    def _overdue(self, now: float) -> dict[str, str]:
        """Remote workers that beat, and let all others wait for an answer; and why they are given up."""
        own = [s.beat for m, s in self.seats.items() if m in self.view and not s.plate.guest and s.beat is not None]
        patience = self.rules.answer + self.rules.steps * step_seconds(own)
        behind = {
            member: f"it did not enter view {self.view.epoch} within {patience:.0f} s"
            for member, seat in self.seats.items()
            if seat.plate.guest and seat.behind is not None and now - seat.behind > patience
        }
        proposal = self.proposal
        if proposal is None or now - proposal.asked <= patience:
            return behind
        missing = [member for member in proposal.view.members if member not in proposal.standings]
        if not all(self._guest(member) for member in missing):
            return behind
        return behind | dict.fromkeys(missing, f"it did not answer a proposal within {patience:.0f} s")

    def _dismiss(self, report: Report) -> list[Effect]:
        if isinstance(report, LeaveRequest | ProcessExited):
            return []
        return [
            SendMessage(report.member, MemberEvicted(epoch=self.memory.epoch, reason=self.memory.lost[report.member]))
        ]

    def _hello(self, report: JoinRequest, now: float) -> None:
        if not self._welcome(report, now):
            return
        seat = self.seats.setdefault(report.member, MemberStatus(now))
        seat.heard, seat.plate, seat.waits = now, report.plate, report.waits
        self._came = now if self._came is None else self._came
        if self._due(now):
            self._propose(now)
        elif report.waits and report.member not in self.view:
            self._introduce(report)

    def _welcome(self, report: JoinRequest, now: float) -> bool:
        """Whether one may come, or be there, as it says that it is reached."""
        seat = self.seats.get(report.member)
        if seat is not None and seat.plate.guest and seat.plate != report.plate:
            self._suspect(report.member, f"it says it is reached at {report.plate.address}, and before it was not", now)
            return False
        plates = {member: seat.plate for member, seat in self.seats.items()}
        objection = plate_objection(report.member, report.plate, plates, self._owner)
        if objection:
            self._do.append(SendMessage(report.member, JoinRefused(reason=printable(objection))))
        return not objection

    def _introduce(self, newcomer: JoinRequest) -> None:
        """The first member of the view and one that waits, to each other: the donor of a view is its first one too."""
        lender = next((member for member in self.view.members if member in self.seats), None)
        if self.proposal is None and lender is not None:
            epoch, seat = self.view.epoch, self.seats[lender]
            patience = LENT_WITHIN + LENT_STEPS * (seat.beat.period if seat.beat is not None else 0.0)
            borrow = StreamStateFrom(epoch=epoch, member=lender, plate=seat.plate, patience=patience)
            lend = StreamStateTo(epoch=epoch, member=newcomer.member, plate=newcomer.plate)
            self._do += [SendMessage(lender, lend), SendMessage(newcomer.member, borrow)]

    def _beat(self, beat: Heartbeat, now: float) -> None:
        seat = self.seats.get(beat.member)
        if seat is None:
            return
        seat.heard, seat.beat = now, beat
        behind = beat.member in self.view and beat.epoch < self.view.epoch and self.proposal is None
        seat.behind = (now if seat.behind is None else seat.behind) if behind else None
        self._do.append(SendMessage(beat.member, LeaseRenewal(sent=beat.sent, seconds=self.rules.lease)))
        if self.proposal is not None:
            view = self.proposal.view
            if beat.member in view and beat.promised < view.epoch:  # it was away when it was asked
                self._do.append(SendMessage(beat.member, ProposeView(view=view, step=self.proposal.step)))
        elif beat.member in self.view:
            self._catch_up(beat, now)

    def _catch_up(self, beat: Heartbeat, now: float) -> None:
        if beat.promised > self.view.epoch:  # asked by a proposal that died with a coordinator before me
            self.memory.epoch = max(self.memory.epoch, beat.promised)
            self._propose(now)
        elif beat.epoch < self.view.epoch:
            self._do.append(SendMessage(beat.member, ProposeView(view=self.view)))
            self._do.append(SendMessage(beat.member, self.memory.installed))

    def _doubt(self, doubt: SuspectMember, now: float) -> None:
        """Where a guest and one of the run's own do not hear each other, it is the guest that can be spared."""
        if doubt.member not in self.view or doubt.of not in self.view or doubt.member == doubt.of:
            return
        if not self._guest(doubt.member) or self._guest(doubt.of):
            self.doubts.hear(doubt, now)
        elif not doubt.closed and not doubt.reason:  # of deaths on the run's own machine the launcher tells
            self.doubts.hear(SuspectMember(member=doubt.of, of=doubt.member), now)

    def _standing(self, standing: ProposeAck, now: float) -> None:
        if standing.member in self.seats:
            self.seats[standing.member].heard = now
        proposal = self.proposal
        if proposal is None or standing.epoch != proposal.view.epoch or standing.member not in proposal.view:
            return
        if proposal.step and not standing.blank and not standing.between:
            # It heard of it too late, or had left for a proposal of another coordinator: all cannot stand between the
            # same two steps, and whoever waits for that step would wait for this one too.
            self._ahead = min(2 * self._ahead, 2**MISSES * self.rules.ahead)
            seat = self.seats[standing.member]
            seat.missed += 1
            if seat.plate.guest and seat.missed > MISSES:
                self._suspect(standing.member, f"it had begun the step of {seat.missed} proposals in a row", now)
            else:
                self._propose(now)
            return
        if not self._guest(standing.member) and standing.member not in proposal.standings:
            proposal.asked = now
        proposal.standings[standing.member] = standing
        if len(proposal.standings) == len(proposal.view):
            self._close(proposal, now)

    def _close(self, proposal: ViewProposal, now: float) -> None:
        """All have answered: the view is installed, unless a remote worker's answer cannot be true."""
        knowing = [standing for standing in proposal.standings.values() if not standing.blank]
        liars = forged(knowing, self._guest)
        own = [member for member in proposal.view.members if not self._guest(member)]
        if own and knowing and all(self._guest(standing.member) for standing in knowing):
            # a remote worker gives no state to the run's own: what it sends is not checked against anything
            liars |= {
                standing.member: "no worker of the machine the run began on has its state" for standing in knowing
            }
        for member, why in liars.items():
            self._drop(member, why)
        if liars:
            self._propose(now)
        else:
            self._install(proposal)

    def _lose(self, member: str, reason: str, now: float) -> None:
        self._missed += member not in self.view and not self._guest(member)
        self._drop(member, reason)
        if member in self.view or (self.proposal is not None and member in self.proposal.view):
            self._propose(now)

    def _drop(self, member: str, reason: str) -> None:
        self._over |= reason == LEFT and not self._guest(member)
        self.seats.pop(member, None)
        lost = MemberLost(member=member, reason=reason)
        self.memory.add(lost)
        self._do += [WriteEntry(lost), SendMessage(member, MemberEvicted(epoch=self.memory.epoch, reason=reason))]

    @property
    def _begun(self) -> bool:
        """Whether this coordinator has made a view, or found one alive."""
        return self._installs > 0 or any(member in self.seats for member in self.view.members)

    @property
    def founding(self) -> bool:
        """Whether workers of other machines may still be in the first view, which nobody enters with a state."""
        return self.rules.remote > 0 and not self._begun

    def expect(self, remote: int, now: float) -> list[Effect]:
        """The first view waits for so many workers of other machines, and no more."""
        self.rules = replace(self.rules, remote=remote)
        return self.tick(now)

    def _due(self, now: float) -> bool:
        """Whether a view has to be made without anybody's asking."""
        if self.proposal is not None or not self.seats:
            return False
        if not self._begun:
            waited = now - self._came if self._came is not None else 0.0
            here = sum(not self._guest(member) for member in self.seats)
            complete = here + self._missed >= self.rules.members and len(self.seats) - here >= self.rules.remote
            return here > 0 and (complete or waited > self.rules.gather)
        # the coordinator before me was killed between writing that somebody is lost and saying so
        return any(member not in self.seats for member in self.view.members)

    def _propose(self, now: float) -> None:
        """A view of those that are left; of the newcomers only if nobody is, for then there is nothing to disturb."""
        stay = tuple(member for member in self.view.members if member in self.seats)
        if self._orphaned(stay):
            for member in stay:
                self._drop(member, "no worker of the machine the run began on is left")
            stay = ()
        # the first by name, so that ranks do not depend on who was quicker
        founding = self.founding
        own = [member for member in self.seats if founding or not self._guest(member)]
        self._make(stay or tuple(sorted(own, key=lambda member: (len(member), member))), 0, now)

    def _guest(self, member: str) -> bool:
        return member in self.seats and self.seats[member].plate.guest

    def _machine(self, member: str) -> str:
        """What a member's successor shares with it: its address, and a remote worker's key, for it may say any."""
        place = address(self.seats[member].plate)
        return f"{self._owner(member)} {place}" if self._guest(member) else place

    def _orphaned(self, stay: tuple[str, ...]) -> bool:
        """Whether nobody is left who keeps the ledger and the checkpoints, though there is more to be trained."""
        return bool(stay) and not self._over and all(self._guest(member) for member in stay)

    def _admit(self, now: float) -> None:
        """Let newcomers in when all begin the same step, far enough ahead for everybody to hear of it before."""
        new = tuple(
            member
            for member, seat in self.seats.items()
            if member not in self.view and not seat.waits and not self.doubts.kept_out(self._machine(member), now)
        )
        if self.proposal is not None or not new or not self.view.members:
            return
        beats = [seat.beat for member, seat in self.seats.items() if member in self.view]
        there = [beat for beat in beats if beat is not None and beat.epoch == beat.promised == self.view.epoch]
        if len(there) == len(self.view):  # or somebody has not even entered this view yet
            own = [beat for beat in there if not self._guest(beat.member)] or there
            period = max(step_seconds(own), SHORTEST_STEP) if step_seconds(own) else self._ahead
            step = max(beat.step for beat in own) + 2 + round(self._ahead / period)
            self._make(self.view.members + new, step, now)

    def _make(self, members: tuple[str, ...], step: int, now: float) -> None:
        # guests last: worker 0 writes ledger and checkpoints, and must see the run's folder
        view = MembershipView(self.memory.epoch + 1, tuple(sorted(members, key=self._guest)))
        self.memory.epoch = view.epoch
        self.proposal = ViewProposal(view, step, now, now) if members else None
        self._do.append(WriteEntry(ViewProposed(epoch=view.epoch)))
        self._do += [SendMessage(member, ProposeView(view=view, step=step)) for member in view.members]

    def _install(self, proposal: ViewProposal) -> None:
        standings = [proposal.standings[member] for member in proposal.view.members]
        knowing = [standing for standing in standings if not standing.blank]
        view, between = proposal.view, bool(proposal.step)
        if between:
            self._ahead = self.rules.ahead
            for member in view.members:
                self.seats[member].missed = 0
        through = decide(knowing)
        install = InstallView(
            view=view,
            through=through,
            fresh=tuple(s.member for s in standings if s.blank and s.member in view),
            lent=tuple(s.member for s in standings if s.lent and s.member in view),
            between=between,
            dealt=self._dealt([standing for standing in knowing if standing.applied == through]),
            donor=knowing[0].member if knowing else "",
            plates=tuple(self.seats[member].plate for member in view.members),
        )
        self.proposal = None
        self.doubts.clear()
        self._installs += 1
        installed = ViewInstalled(install=install)
        self.memory.add(installed)
        self._do.append(WriteEntry(installed))
        self._do += [SendMessage(member, install) for member in install.view.members]

    def _dealt(self, standings: list[ProposeAck]) -> MembershipView:
        """A view between two steps may have reached some, who began the second in it, and not all that are left."""
        shared = self.memory.shared
        return shared if any(shared.epoch == standing.dealt for standing in standings) else MembershipView()

    def _remind(self, now: float) -> None:
        proposal = self.proposal
        if proposal is not None and now - proposal.said >= self.rules.repeat:
            proposal.said = now
            missing = tuple(member for member in proposal.view.members if member not in proposal.standings)
            again = ProposeView(
                view=proposal.view, step=proposal.step, missing=missing
            )  # to all: who waits wants to know for whom
            self._do += [SendMessage(member, again) for member in proposal.view.members]
