"""A view in the making, and what is complete when the view before it ends: the decision everything else hangs on.

coordinator: ProposeView to all ─▶ ProposeAck of each ─▶ decide ─▶ InstallView to all
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.membership.bounds import forged, step_seconds
from shoal.membership.protocol import Heartbeat, InstallView, MemberInfo, ProposeAck, ProposeView
from shoal.membership.view import MembershipView

SHORTEST_STEP = 1e-3


def decide(acks: Sequence[ProposeAck]) -> int:
    """Return how many operations are complete, for all that stay, when they leave a view.

    No member completes an operation before all hold its result, so one that is behind holds it. If all are equally far
    and all hold the result of the next operation, formed in one view, it counts too, though nobody had got there.
    """
    if not acks:
        return 0
    furthest = max(ack.applied for ack in acks)
    level = all(ack.applied == furthest for ack in acks)
    held = {ack.formed for ack in acks}
    return furthest + (level and len(held) == 1 and 0 not in held)


@dataclass
class ViewProposal:
    """What all members of `view` were asked at the time `said`, and have answered."""

    view: MembershipView
    step: int
    """Newcomers enter right before this step; 0: there are none, and the view is made at once."""
    said: float
    asked: float
    """When the last of the run's own workers answered, or when all were asked."""
    acks: dict[str, ProposeAck] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Members that have not answered."""
        return tuple(member for member in self.view.members if member not in self.acks)

    @property
    def knowing(self) -> list[ProposeAck]:
        """Answers of those that have the state of the run, in order of rank."""
        acks = (self.acks[member] for member in self.view.members if member in self.acks)
        return [ack for ack in acks if not ack.blank]

    def message(self, missing: tuple[str, ...] = ()) -> ProposeView:
        """`missing` goes to everybody: those that wait want to know for whom."""
        return ProposeView(view=self.view, step=self.step, missing=missing)

    def liars(self, is_remote: Callable[[str], bool]) -> dict[str, str]:
        """Return the remote members whose answer cannot be true, and why."""
        knowing = self.knowing
        found = forged(knowing, is_remote)
        own = [member for member in self.view.members if not is_remote(member)]
        if own and knowing and all(is_remote(ack.member) for ack in knowing):
            # a remote worker gives no state to the run's own: what it sends is not checked against anything
            found |= {ack.member: "no worker of the machine the run began on has its state" for ack in knowing}
        return found

    def to_install(self, infos: Sequence[MemberInfo], shared: MembershipView) -> InstallView:
        """Return the view as all members install it; `shared`: the last one that was made between two steps."""
        acks, knowing = [self.acks[member] for member in self.view.members], self.knowing
        through = decide(knowing)
        # A view between two steps may have reached some, who began the second in it, and not all that are left.
        reached = any(shared.generation == ack.committed_generation for ack in knowing if ack.applied == through)
        return InstallView(
            view=self.view,
            through=through,
            fresh=tuple(ack.member for ack in acks if ack.blank),
            streamed=tuple(ack.member for ack in acks if ack.streamed),
            between=bool(self.step),
            committed_view=shared if reached else MembershipView(),
            donor=knowing[0].member if knowing else "",
            infos=tuple(infos),
        )


def entry_step(beats: Sequence[Heartbeat], ahead: float) -> int:
    """Return the step before which newcomers enter: about `ahead` seconds from now, so that all hear of it before."""
    seconds = step_seconds(beats)
    period = max(seconds, SHORTEST_STEP) if seconds else ahead
    return max(beat.step for beat in beats) + 2 + round(ahead / period)
