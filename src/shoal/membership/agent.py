"""A worker's agent: one thread that talks to the coordinator, so that the training thread never waits for a socket."""

import threading
from collections.abc import Callable

from shoal.core import errors
from shoal.core.clock import Deadline, now
from shoal.core.ids import check_id
from shoal.membership.coordinator_client import CoordinatorClient, ReconnectBackoff
from shoal.membership.credentials import ClientCredentials
from shoal.membership.envelope import MessageEnvelope, ProtocolMismatch
from shoal.membership.lease_client import LeaseClient
from shoal.membership.member import MemberState, StreamingPartners
from shoal.membership.member_reports import MemberReports
from shoal.membership.protocol import (
    ConfirmResult,
    InstallView,
    JoinRefused,
    JoinRequest,
    LeaseRenewal,
    LeasesClosing,
    LeaveRequest,
    MemberEvicted,
    MemberInfo,
    Order,
    ProposeAck,
    ProposeView,
    RunOver,
    SamplesLeased,
)
from shoal.membership.step_watchdog import Look, StepPeriod, ThreadIdleTime
from shoal.membership.view import MembershipView

BEAT = 0.25
"""Seconds between beats."""
LOOK = 0.02
"""Longest wait of the agent's thread, so that messages of the training thread leave soon."""
RETRY = 0.02
"""Seconds after which a beat is tried again if there was no connection."""
PERSIST = 6.0
"""Seconds of asking again after a refusal: a host that restarts quickly is still listed under its old id."""
NAP = 0.5
"""Longest wait of the training thread between two checks of the lease, which ends without a message."""


class MembershipAgent:
    """Public methods are for the training thread; callbacks run in the agent's, under its lock, and must be short.

    `holds(generation)`    show all peers that this worker has left every view before `generation`, then return whether
                           it can read every part of the operation under way. Over links, `hold` does this instead.
    `on_install(install)`  a view was installed; `install.donor` sends its state to `install.fresh`.
    `look`                 returns the training loop's step and state, see `step_watchdog`.
    """

    def __init__(
        self,
        member: str,
        address: str,
        run: str,
        *,
        key: ClientCredentials | None = None,
        look: Look = lambda: (0, ""),
        holds: Callable[[int], bool] = lambda generation: False,
        on_install: Callable[[InstallView], object] = lambda install: None,
    ) -> None:
        self.id, self.address = check_id(member, "member"), address
        self.info = MemberInfo()
        """Where other members reach this worker; set it before `start`."""
        self.streaming_partners = StreamingPartners()
        self.reports = MemberReports(member)
        self._envelope, self._key = MessageEnvelope(check_id(run, "run")), key
        self._look, self._on_install = look, on_install
        self._member = MemberState(member, holds=holds)
        self._changed = threading.Condition(threading.RLock())
        self._period = StepPeriod()
        self._error: errors.ShoalError | None = None
        self._refused: Deadline | None = None
        self._installed: InstallView | None = None
        self._waits_for: tuple[str, ...] = ()
        self._unsaid: ProposeAck | None = None
        self._line: CoordinatorClient | None = None
        self.leases = LeaseClient(self._wake, self.check)
        self._began = self._heard = now()
        self._closing = False
        self._goodbye: LeaveRequest | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-agent", daemon=True)
        self.disturbed = True
        """Whether waits for peers must end: there is no view, another one is being made, or this worker is out."""

    def start(self) -> None:
        """Start the thread. Call it after any fork, which ends threads, in the training thread, which is watched."""
        self._rest = ThreadIdleTime()
        self._began = self._heard = now()
        self._thread.start()

    def close(
        self, leave: bool = True, seconds: float = 5.0, early: bool = False, held: tuple[int, str] = (0, "")
    ) -> None:
        """End the thread. `leave` tells the coordinator that this worker goes, `early` that the training is not over.

        `held`: the last step, and the fingerprint of the parameters after it.
        """
        goodbye = LeaveRequest(member=self.id, early=early, step=held[0], fingerprint=held[1])
        self._goodbye, self._closing = goodbye if leave else None, True
        if self._thread.ident is not None:
            self._thread.join(seconds)

    @property
    def view(self) -> MembershipView:
        return self._member.view

    @property
    def applied(self) -> int:
        """Return how many operations are complete."""
        return self._member.applied

    @property
    def committed_view(self) -> MembershipView:
        """Return the view that formed the last complete operation."""
        return self._member.committed_view

    @property
    def entered_view(self) -> MembershipView:
        """Return `committed_view` as it was when the training thread last entered an operation."""
        return self._member.entered_view

    @property
    def blank(self) -> bool:
        """Return whether this worker still needs a state, from `installed.donor` or a checkpoint; see `filled`."""
        return self._member.blank

    @property
    def installed(self) -> InstallView | None:
        """Return the message that installed the current view."""
        return self._installed

    @property
    def unheard(self) -> float:
        """Return the seconds since the coordinator was last heard, or since this agent was started."""
        return now() - self._heard

    def filled(self, dealt: MembershipView | None = None) -> None:
        """Note that the state has come, as of operation `applied`, formed in the view `dealt` (None: the first)."""
        with self._changed:
            self._member.filled(dealt if dealt is not None else self._member.view)

    def note_streamed(self) -> None:
        """Note that the state was streamed to this worker, so the donor need not send all of it."""
        with self._changed:
            self._member.streamed = True

    def begin(self, step: int, deadline: Deadline) -> None:
        """Call before every step: newcomers enter here, and this worker waits while they do."""
        with self._changed:
            self.check()
            while (standing := self._member.begin(step)) is not None:
                self._unsaid, self.disturbed = standing, True
                self._wait_free(deadline)

    @property
    def proposed(self) -> bool:
        """Return whether a view with newcomers waits for its step to begin."""
        return self._member.waiting is not None

    @property
    def proposed_plan(self) -> str:
        """The plan of that view; empty if none waits, or if it is the one the run began with."""
        waiting = self._member.waiting
        return waiting.view.plan if waiting is not None else ""

    def enter(self, deadline: Deadline) -> int:
        """Begin the next operation and return its number; wait until there is a view and a lease."""
        with self._changed:
            self._wait_free(deadline)
            if self._member.blank:
                raise errors.ShoalError(f"{self.id} has no state to train on yet; fetch it from the donor first")
            return self._member.enter()

    def hold(self) -> ConfirmResult | None:
        """Note, over links, that this worker holds the result; return the message for all others.

        None: a view is being made, so the operation can no longer complete in this one.
        """
        with self._changed:
            self.check()
            return self._member.hold() if self._member.settled else None

    def confirmed(self, said: ConfirmResult) -> None:
        """Note, over links, that a peer holds the result."""
        with self._changed:
            self._member.confirmed(said)

    def complete(self, seen: MembershipView | None = None) -> bool:
        """Complete the operation under way if all members hold its result; return whether it is complete.

        `seen`: the view in which all parts were seen in shared memory before any member left it.
        """
        with self._changed:
            self.check()
            if seen is not None and seen == self._member.view and self._member.settled and self._member.inside:
                self._member.seen()
            if not self._member.complete(now()):
                return False
            self._member.apply()
            return True

    def wait_settled(self, deadline: Deadline) -> bool:
        """Wait for a view in which this worker may go on; return whether no operation is under way any more.

        True: the operation counts as complete. False: this worker must hand in its part again, in the new view.
        """
        with self._changed:
            self._wait_free(deadline)
            return not self._member.inside

    def check(self) -> None:
        """Raise the error that ended this worker's membership, if there is one."""
        if self._error is not None:
            raise self._error

    def _wait_free(self, deadline: Deadline) -> None:
        self.check()
        while not self._member.free(now()):
            if deadline.expired:
                raise errors.DeadlineError(f"{self.id} waited {deadline.budget:.0f} s {self._suspect()}")
            self._changed.wait(min(NAP, deadline.left))
            self.check()

    def _suspect(self) -> str:
        ago = now() - self._heard
        silent = f"for the coordinator at {self.address}, "
        if self._heard == self._began:
            return silent + "which was never heard; is it running?"
        if ago > 4 * BEAT:
            return silent + f"last heard {ago:.1f} s ago; is it running?"
        if self._member.settled:
            return silent + "which does not renew the lease"
        return f"for a view of {', '.join(self._waits_for) or 'all members'}, which did not answer the coordinator"

    def _wake(self) -> None:
        """Make the agent's thread send now."""
        with self._changed:  # the thread closes the connection under this lock
            if self._line is not None:
                self._line.wake()

    def _run(self) -> None:
        """Run the agent's thread."""
        try:
            line = self._line = CoordinatorClient(self.address, self._envelope, self._key).connect()
            try:
                self._serve(line)
            finally:
                with self._changed:
                    self._line = None
                line.close()
        except ProtocolMismatch as error:
            self._fail(errors.UsageError(f"{self.id} cannot join at {self.address}: {error}"))
        except errors.ShoalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (raised in the training thread, by `check`)
            self._fail(errors.ShoalError(f"the agent of {self.id} failed: {type(error).__name__}: {error}"))

    def _serve(self, line: CoordinatorClient) -> None:
        due, self._redial = 0.0, ReconnectBackoff(now())
        while not self._closing:
            if self._redial.due(now()):
                line.renew()
            beat = now() >= due
            if beat:
                due = now() + (BEAT if self._speak(line) else RETRY)
            self._answer(line)
            for request in self.leases.unsaid(beat):
                line.say(request)
            for order in line.orders(min(LOOK, max(0.0, due - now()))):
                with self._changed:
                    self._heard = now()
                    self._redial.heard(self._heard)
                    self._obey(order, line)
                    self.streaming_partners.hear(order)
                    self.disturbed = self._error is not None or not self._member.settled
                    self._changed.notify_all()
        if self._goodbye is not None:
            line.say(self._goodbye)

    def _answer(self, line: CoordinatorClient) -> None:
        """Send the training thread's answer to a proposal; if it gets lost, the coordinator asks again."""
        with self._changed:
            standing, self._unsaid = self._unsaid, None
            if standing is not None:
                line.say(standing)

    def _speak(self, line: CoordinatorClient) -> bool:
        step, doing = self._look()
        with self._changed:
            if self._error is not None:
                return True
            if self._member.view.generation == 0:
                line.say(JoinRequest(member=self.id, info=self.info, waits=self.streaming_partners.waits))
            for report in self.reports.due(self._member.view):
                line.say(report)
            moment = now()
            period, idle = self._period.look(moment, step), self._rest.look(moment)
            return line.say(self._member.beat(moment, step, period, doing, idle))

    def _obey(self, order: Order, line: CoordinatorClient) -> None:
        match order:
            case SamplesLeased() | LeasesClosing():
                self.leases.hear(order)
            case LeaseRenewal():
                self._member.renew(order)
                self._redial.round_trip(self._heard - order.sent)
            case ProposeView():
                self._propose(order, line)
            case InstallView():
                self._install(order)
            case MemberEvicted():
                self._evicted(order)
            case RunOver():
                if self._error is None and not (order.well and not self._member.blank):
                    self._error = errors.RunEnded(f"the run has ended: {order.reason}", well=order.well)
            case JoinRefused() if self._member.view.generation == 0:
                self._refused = self._refused or Deadline.after(PERSIST)
                if self._refused.expired:
                    self._error = errors.UsageError(f"{self.id} was refused at {self.address}: {order.reason}")

    def _propose(self, order: ProposeView, line: CoordinatorClient) -> None:
        self._waits_for = order.missing
        standing = self._member.propose(order)
        if standing is not None:
            line.say(standing)

    def _install(self, order: InstallView) -> None:
        before = self._member.view.generation
        self._member.install(order)
        if self._member.view.generation != before:
            self._installed = order
            self.reports.begin_view()
            self._on_install(order)

    def _evicted(self, order: MemberEvicted) -> None:
        self._member.evicted = order.reason
        self._error = errors.Evicted(
            f"{self.id} is no member of {self._envelope.run} any more ({order.reason}); "
            "what it did since counts for nothing; start it again to join as a new member"
        )

    def _fail(self, error: errors.ShoalError) -> None:
        with self._changed:
            self._error, self.disturbed = error, True
            self._changed.notify_all()
