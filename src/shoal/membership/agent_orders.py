"""Carries out the coordinator's orders in a worker: its view, its leases, and the error that ends its membership."""

from collections.abc import Callable

from shoal.core import errors
from shoal.core.clock import Deadline
from shoal.membership.coordinator_client import CoordinatorClient
from shoal.membership.lease_client import LeaseClient
from shoal.membership.member import MemberState
from shoal.membership.member_reports import MemberReports
from shoal.membership.protocol import (
    InstallView,
    JoinRefused,
    LeaseRenewal,
    LeasesClosing,
    MemberEvicted,
    Order,
    ProposeView,
    RunOver,
    SamplesLeased,
)

PERSIST = 6.0
"""Seconds of asking again after a refusal: a host that restarts quickly is still listed under its old id."""


class AgentOrders:
    """Of one agent, which calls `obey` in its own thread and under its lock; other reads are under the same lock."""

    def __init__(
        self,
        run: str,
        address: str,
        member: MemberState,
        leases: LeaseClient,
        reports: MemberReports,
        on_install: Callable[[InstallView], object],
    ) -> None:
        self._run, self._address, self._member = run, address, member
        self._leases, self._reports, self._on_install = leases, reports, on_install
        self.error: errors.ShoalError | None = None
        """Why this worker is no member any more, or cannot become one."""
        self.installed: InstallView | None = None
        self.waits_for: tuple[str, ...] = ()
        """The members whose answers to a proposal the coordinator still waits for."""
        self._refused: Deadline | None = None

    def obey(self, order: Order, line: CoordinatorClient) -> None:
        """Do what the coordinator says; an answer that is due at once leaves on `line`."""
        match order:
            case SamplesLeased() | LeasesClosing():
                self._leases.hear(order)
            case LeaseRenewal():
                self._member.renew(order)
            case ProposeView():
                self._propose(order, line)
            case InstallView():
                self._install(order)
            case MemberEvicted():
                self._evicted(order)
            case RunOver():
                # A worker that holds the state finishes its last operation by itself when a run ends well.
                if self.error is None and not (order.well and not self._member.blank):
                    self.error = errors.RunEnded(f"the run has ended: {order.reason}", well=order.well)
            # Only before the first view: a refusal that was delayed must not end a member.
            case JoinRefused() if self._member.view.generation == 0:
                self._refused = self._refused or Deadline.after(PERSIST)
                if self._refused.expired:
                    self.error = errors.UsageError(f"{self._member.id} was refused at {self._address}: {order.reason}")

    def _propose(self, order: ProposeView, line: CoordinatorClient) -> None:
        self.waits_for = order.missing
        standing = self._member.propose(order)
        if standing is not None:
            line.say(standing)

    def _install(self, order: InstallView) -> None:
        before = self._member.view.generation
        self._member.install(order)
        # Installations are repeated like all messages, and the callback must see each view once.
        if self._member.view.generation != before:
            self.installed = order
            self._reports.begin_view()
            self._on_install(order)

    def _evicted(self, order: MemberEvicted) -> None:
        self._member.evicted = order.reason
        self.error = errors.Evicted(
            f"{self._member.id} is no member of {self._run} any more ({order.reason}); "
            "what it did since counts for nothing; start it again to join as a new member"
        )
