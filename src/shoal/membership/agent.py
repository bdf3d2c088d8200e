"""A worker's agent: its membership as the training thread asks for it, and as the coordinator's orders change it.

training thread ── begin, enter, hold, complete ──▶ MembershipAgent ◀── speak, answer, hear ── AgentLoop's thread
"""

import threading
from collections.abc import Callable

from shoal.core import errors
from shoal.core.clock import Deadline, now
from shoal.core.ids import check_id
from shoal.membership.agent_loop import AgentLoop
from shoal.membership.agent_orders import AgentOrders
from shoal.membership.coordinator_client import CoordinatorClient
from shoal.membership.credentials import ClientCredentials
from shoal.membership.envelope import MessageEnvelope
from shoal.membership.lease_client import LeaseClient
from shoal.membership.member import MemberState, StreamingPartners
from shoal.membership.member_reports import MemberReports
from shoal.membership.protocol import (
    ConfirmResult,
    InstallView,
    JoinRequest,
    LeaveRequest,
    MemberInfo,
    Order,
    ProposeAck,
)
from shoal.membership.step_watchdog import Look, StepPeriod, ThreadIdleTime
from shoal.membership.view import MembershipView

NAP = 0.5
"""Longest wait of the training thread between two checks of the lease, which ends without a message."""


class MembershipAgent:
    """Public methods are for the training thread, except those of `AgentDuties`, which the agent's thread calls.

    Callbacks run in the agent's thread, under the agent's lock, and must be short:

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
        self._envelope = MessageEnvelope(check_id(run, "run"))
        self.info = MemberInfo()
        """Where other members reach this worker; set it before `start`."""
        self.streaming_partners = StreamingPartners()
        self.reports = MemberReports(member)
        self._look = look
        self._member = MemberState(member, holds=holds)
        # Guards everything below. Re-entrant, because callbacks run under it and may ask this agent again.
        self._changed = threading.Condition(threading.RLock())
        self._period = StepPeriod()
        self._unsaid: ProposeAck | None = None
        self._loop = AgentLoop(self, lambda: CoordinatorClient(address, self._envelope, key))
        self.leases = LeaseClient(self._loop.wake, self.check)
        self._orders = AgentOrders(run, address, self._member, self.leases, self.reports, on_install)
        self.disturbed = True
        """Whether waits for peers must end: there is no view, another one is being made, or this worker is out."""

    def start(self) -> None:
        """Start the thread. Call it after any fork, which ends threads, in the training thread, which is watched."""
        self._rest = ThreadIdleTime()
        self._loop.start()

    def close(
        self, leave: bool = True, seconds: float = 5.0, early: bool = False, held: tuple[int, str] = (0, "")
    ) -> None:
        """End the thread. `leave` tells the coordinator that this worker goes, `early` that the training is not over.

        `held`: the last step, and the fingerprint of the parameters after it.
        """
        goodbye = LeaveRequest(member=self.id, early=early, step=held[0], fingerprint=held[1])
        self._loop.end(goodbye if leave else None, seconds)

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
        return self._orders.installed

    @property
    def unheard(self) -> float:
        """Return the seconds since the coordinator was last heard, or since this agent was started."""
        return self._loop.unheard

    def filled(self, dealt: MembershipView | None = None) -> None:
        """Note that the state has come, as of operation `applied`, formed in the view `dealt` (None: the first)."""
        with self._changed:
            self._member.filled(dealt if dealt is not None else self._member.view)

    def note_streamed(self) -> None:
        """Note that the state was streamed to this worker, so the donor need not send all of it."""
        with self._changed:
            # Told with the answer to the proposal, so that the coordinator can tell the donor.
            self._member.streamed = True

    def begin(self, step: int, deadline: Deadline, admits: bool = True) -> bool:
        """Call before every step: newcomers enter here, and this worker waits while they do.

        Returns False if newcomers go on waiting, because the step does not admit any: call it again at one that does.
        """
        with self._changed:
            self.check()
            while (standing := self._member.begin(step, admits)) is not None:
                # The agent's thread sends it: sockets belong to one thread.
                self._unsaid, self.disturbed = standing, True
                self._wait_free(deadline)
            return not self._member.keeps_out(step, admits)

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
            # The view may have changed since the parts were seen; then they prove nothing about the new members.
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
        if self._orders.error is not None:
            raise self._orders.error

    def _wait_free(self, deadline: Deadline) -> None:
        self.check()
        while not self._member.free(now()):
            if deadline.expired:
                raise errors.DeadlineError(f"{self.id} waited {deadline.budget:.0f} s {self._suspect()}")
            # In slices: a lease ends by the clock, which notifies no one.
            self._changed.wait(min(NAP, deadline.left))
            self.check()

    def _suspect(self) -> str:
        coordinator = f"for the coordinator at {self.address}, "
        if silence := self._loop.describe_silence():
            return f"{coordinator}{silence}; is it running?"
        if self._member.settled:
            return coordinator + "which does not renew the lease"
        return (
            f"for a view of {', '.join(self._orders.waits_for) or 'all members'}, which did not answer the coordinator"
        )

    def answer(self, line: CoordinatorClient) -> None:
        """Send the training thread's answer to a proposal; if it gets lost, the coordinator asks again."""
        with self._changed:
            standing, self._unsaid = self._unsaid, None
            if standing is not None:
                line.say(standing)

    def speak(self, line: CoordinatorClient) -> bool:
        """Send a beat, and what is repeated with it; return whether there was a connection."""
        step, doing = self._look()
        with self._changed:
            if self._orders.error is not None:
                return True
            if self._member.view.generation == 0:
                # Repeated with every beat, because a coordinator that was restarted has forgotten who asked.
                line.say(JoinRequest(member=self.id, info=self.info, waits=self.streaming_partners.waits))
            for report in self.reports.due(self._member.view):
                line.say(report)
            moment = now()
            period, idle = self._period.look(moment, step), self._rest.look(moment)
            return line.say(self._member.beat(moment, step, period, doing, idle))

    def hear(self, order: Order, line: CoordinatorClient) -> None:
        """Do what the coordinator says, and wake the training thread if it waits for that."""
        with self._changed:
            self._orders.obey(order, line)
            self.streaming_partners.hear(order)
            self.disturbed = self._orders.error is not None or not self._member.settled
            self._changed.notify_all()

    def fail(self, error: errors.ShoalError) -> None:
        """End this worker's membership with an error, which `check` raises in the training thread."""
        with self._changed:
            self._orders.error, self.disturbed = error, True
            self._changed.notify_all()
