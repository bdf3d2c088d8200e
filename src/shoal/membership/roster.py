"""The members and newcomers that the coordinator knows, and the machines they came from.

A member is *remote* if it came from another machine than the one the run began on. The run's own workers outrank remote
ones everywhere: only they keep the ledger and the checkpoints, and only their launcher is trusted.
"""

from collections.abc import Callable, Collection

from shoal.membership.bounds import info_objection, step_seconds
from shoal.membership.failure_detector import MembershipRules, MemberStatus
from shoal.membership.protocol import Heartbeat, JoinRequest, MemberInfo
from shoal.membership.view import MembershipView


class MemberRoster:
    """`statuses`: what is known of each living member and newcomer, by id, in the order in which they joined."""

    def __init__(self, owner: Callable[[str], str]) -> None:
        """`owner` returns the key a member came with."""
        self.statuses: dict[str, MemberStatus] = {}
        self._owner = owner

    def __contains__(self, member: object) -> bool:
        return member in self.statuses

    def add(self, member: str, now: float, info: MemberInfo | None = None) -> MemberStatus:
        """Return the status of a member; a new one gets a new status."""
        return self.statuses.setdefault(member, MemberStatus(now, info=info or MemberInfo()))

    def is_remote(self, member: str) -> bool:
        return member in self.statuses and self.statuses[member].info.remote

    @property
    def own(self) -> list[str]:
        """Return the members of the machine the run began on."""
        return [member for member in self.statuses if not self.is_remote(member)]

    def machine_of(self, member: str) -> str:
        """Return what identifies a member's machine: its address, and for a remote one, which may lie, also its key."""
        place = host_of(self.statuses[member].info)
        return f"{self._owner(member)} {place}" if self.is_remote(member) else place

    def objection(self, report: JoinRequest) -> str:
        """Return why a member's address or key is refused, or ""."""
        infos = {member: status.info for member, status in self.statuses.items()}
        return info_objection(report.member, report.info, infos, self._owner)

    def moved(self, report: JoinRequest) -> bool:
        """Return whether a remote member now claims another address or key than before."""
        status = self.statuses.get(report.member)
        # The run's own workers are believed; a remote one could take over another's traffic that way.
        return status is not None and status.info.remote and status.info != report.info

    def settled_beats(self, view: MembershipView) -> list[Heartbeat]:
        """Return the last beats of the members that have entered `view` and were asked to enter no later one."""
        beats = [status.beat for member, status in self.statuses.items() if member in view]
        return [beat for beat in beats if beat is not None and beat.generation == beat.promised == view.generation]

    def answer_seconds(self, view: MembershipView, rules: MembershipRules) -> float:
        """Return how long a remote member may take to answer: `rules.answer`, and some steps of the run's own."""
        own = (status.beat for member, status in self.statuses.items() if member in view and not status.info.remote)
        return rules.answer + rules.steps * step_seconds([beat for beat in own if beat is not None])

    def overdue(self, view: MembershipView, seconds: float, now: float) -> dict[str, str]:
        """Return the remote members that beat but have not entered `view` within `seconds`, and why they must go."""
        return {
            member: f"it did not enter view {view.generation} within {seconds:.0f} s"
            for member, status in self.statuses.items()
            if status.info.remote and status.behind is not None and now - status.behind > seconds
        }

    def all_remote(self, members: Collection[str]) -> bool:
        """Return whether all of `members`, and at least one, are remote."""
        return bool(members) and all(map(self.is_remote, members))


def host_of(info: MemberInfo) -> str:
    """Return the address of a member's machine, without the port."""
    return info.address.rpartition(":")[0]
