"""A proposed view, and the decision on which all else depends: which operations are complete when a view ends.

coordinator: ProposeView to all ─▶ ProposeAck of each ─▶ decide ─▶ InstallView to all
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.membership.bounds import forged, step_seconds
from shoal.membership.protocol import Heartbeat, InstallView, MemberInfo, ProposeAck, ProposeView
from shoal.membership.view import MembershipView

# Seconds; bounds how many steps ahead an entry may be for a script whose steps take no time.
SHORTEST_STEP = 1e-3


def decide(acks: Sequence[ProposeAck]) -> int:
    """Return how many operations count as complete for all members that leave a view together.

    No member completes an operation before all hold its result, so a member that is behind holds it. If all are equally
    far and all hold the result of the next operation, formed in one view, it counts too, though none had completed it.
    """
    if not acks:
        return 0
    furthest = max(ack.applied for ack in acks)
    level = all(ack.applied == furthest for ack in acks)
    held = {ack.formed for ack in acks}
    # Formed in different views, results of one operation may differ in who is in them, so none of them counts.
    return furthest + (level and len(held) == 1 and 0 not in held)


@dataclass
class ViewProposal:
    """A proposal that was last sent at `said`, and the answers to it."""

    view: MembershipView
    step: int
    """The step before which newcomers enter; 0 if there are none, and all leave their view at once."""
    said: float
    asked: float
    """When the last of the run's own workers answered, or else when the proposal was made."""
    acks: dict[str, ProposeAck] = field(default_factory=dict)
    standing: float | None = None
    """Since when all members that train have been waiting for newcomers to answer."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the members that have not answered."""
        return tuple(member for member in self.view.members if member not in self.acks)

    @property
    def knowing(self) -> list[ProposeAck]:
        """Return the answers of members that have a state, in order of rank."""
        acks = (self.acks[member] for member in self.view.members if member in self.acks)
        return [ack for ack in acks if not ack.blank]

    def message(self, missing: tuple[str, ...] = ()) -> ProposeView:
        """Return the message to send; `missing` tells members that wait whom they wait for."""
        return ProposeView(view=self.view, step=self.step, missing=missing)

    def liars(self, is_remote: Callable[[str], bool]) -> dict[str, str]:
        """Return the remote members whose answer cannot be true, and why."""
        knowing = self.knowing
        found = forged(knowing, is_remote)
        own = [member for member in self.view.members if not is_remote(member)]
        if own and knowing and all(is_remote(ack.member) for ack in knowing):
            # The run's own workers take no state from a remote one: nothing could show that it is the right one.
            found |= {ack.member: "no worker of the machine the run began on has its state" for ack in knowing}
        return found

    def to_install(self, infos: Sequence[MemberInfo], shared: MembershipView) -> InstallView:
        """Return the message that installs the view; `shared`: the last view that was made between two steps."""
        acks, knowing = [self.acks[member] for member in self.view.members], self.knowing
        through = decide(knowing)
        # A view made between two steps may have reached only some members, which then began the second step in it.
        reached = any(shared.generation == ack.committed_generation for ack in knowing if ack.applied == through)
        return InstallView(
            view=self.view,
            through=through,
            fresh=tuple(ack.member for ack in acks if ack.blank),
            streamed=tuple(ack.member for ack in acks if ack.streamed),
            between=bool(self.step),
            committed_view=shared if reached else MembershipView(),
            # Remote workers come last in rank, so this is one of the run's own if any of them has a state.
            donor=knowing[0].member if knowing else "",
            infos=tuple(infos),
        )


def entry_step(beats: Sequence[Heartbeat], ahead: float) -> int:
    """Return the step before which newcomers enter: about `ahead` seconds from now, so that all hear of it in time."""
    seconds = step_seconds(beats)
    period = max(seconds, SHORTEST_STEP) if seconds else ahead
    # 2: a member may be at the end of a step, and begin the next, while its beat is on the way.
    return max(beat.step for beat in beats) + 2 + round(ahead / period)
