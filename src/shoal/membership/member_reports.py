"""What a worker repeats to the coordinator with every beat, until a view answers it.

Any message may be lost, or meet a coordinator that has just been started again and knows nothing. To repeat is simpler
than to acknowledge, and the coordinator takes the same report twice for one.
"""

from collections.abc import Iterator, Mapping

from shoal.membership.protocol import PlanRequest, SuspectMember, printable
from shoal.membership.view import MembershipView


class MemberReports:
    """One worker's. The training thread adds to them and the agent's thread reads them, each in one operation."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.suspicions: tuple[SuspectMember, ...] = ()
        """Members that are not heard at the moment."""
        self.accusations: dict[str, SuspectMember] = {}
        """Members that broke the protocol in this view."""
        self.plan_request: PlanRequest | None = None

    def doubt(self, others: Mapping[str, bool]) -> None:
        """Report the members that are not heard, and whether their endpoint is closed, instead of those before."""
        said = [SuspectMember(member=self.member, of=other, closed=closed) for other, closed in others.items()]
        self.suspicions = tuple(said)

    def accuse(self, other: str, reason: str, late: bool = False) -> None:
        """Report a member that breaks the protocol, until the view changes."""
        self.accusations[other] = SuspectMember(member=self.member, of=other, reason=printable(reason), late=late)

    def request_plan(self, plan: str, view: MembershipView) -> None:
        """Ask for another plan than that of `view`, until a view has it, or a later one."""
        asked = self.plan_request.number if self.plan_request is not None else 0
        # numbered, so that a request which comes late does not undo a later switch
        self.plan_request = PlanRequest(member=self.member, plan=plan, number=max(view.switches, asked) + 1)

    def begin_view(self) -> None:
        """Who was accused is out, or the coordinator did not believe it."""
        self.accusations.clear()

    def due(self, view: MembershipView) -> Iterator[SuspectMember | PlanRequest]:
        """What to say with this beat."""
        yield from self.suspicions
        yield from list(self.accusations.values())  # the training thread may add one meanwhile
        if self.plan_request is not None and self.plan_request.number > view.switches:
            yield self.plan_request
