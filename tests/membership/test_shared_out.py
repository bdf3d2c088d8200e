"""Who shares out a step: all members alike, also one that never saw the view in which the others began it."""

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import Effect, SendMessage, ViewInstalled
from shoal.membership.member import MemberState
from shoal.membership.protocol import Heartbeat, InstallView, JoinRequest, ProcessExited, ProposeView


def deliver(
    effects: list[Effect], members: dict[str, MemberState], coordinator: MembershipCoordinator, deaf: str = ""
) -> None:
    """Let members hear what they are told and answer; `deaf` gets proposals, and no install."""
    for effect in effects:
        if not isinstance(effect, SendMessage) or effect.member not in members:
            continue
        member = members[effect.member]
        if isinstance(effect.order, ProposeView) and (standing := member.propose(effect.order)) is not None:
            deliver(coordinator.hear(standing, 1.0), members, coordinator, deaf)
        elif isinstance(effect.order, InstallView) and member.id != deaf and member.install(effect.order):
            raise AssertionError("nothing was under way")


def started(*names: str) -> tuple[MembershipCoordinator, dict[str, MemberState]]:
    coordinator, members = (
        MembershipCoordinator(MembershipRules(members=len(names)), 0.0),
        {name: MemberState(name) for name in names},
    )
    for name in names:
        deliver(coordinator.hear(JoinRequest(member=name), 0.0), members, coordinator)
    for member in members.values():
        member.filled(member.view)
        member.begin(1)
    return coordinator, members


def test_a_step_begun_in_a_view_that_one_never_saw_is_shared_out_by_it_all_the_same() -> None:
    coordinator, members = started("a", "b", "c")
    members["d"] = MemberState("d")
    deliver(coordinator.hear(JoinRequest(member="d"), 0.0), members, coordinator)
    for name in "abc":
        deliver(coordinator.hear(beat(members[name]), 0.1), members, coordinator)
    deliver(coordinator.tick(0.2), members, coordinator)
    assert coordinator.proposal is not None
    step = coordinator.proposal.step
    for name in "abc":
        standing = members[name].begin(step)
        assert standing is not None
        deliver(coordinator.hear(standing, 0.3), members, coordinator, deaf="c")
    between = coordinator.view
    assert (between.members, members["a"].committed_view, members["b"].committed_view) == (
        ("a", "b", "c", "d"),
        between,
        between,
    )
    assert members["c"].committed_view != between
    members["d"].filled(members["a"].committed_view)

    del members["b"]
    deliver(coordinator.hear(ProcessExited(member="b", reason="killed"), 0.4), members, coordinator)
    assert [member.view.members for member in members.values()] == [("a", "c", "d")] * 3
    assert [member.committed_view for member in members.values()] == [between] * 3


def test_a_coordinator_that_comes_back_knows_who_shared_out_the_step() -> None:
    coordinator, _ = started("a", "b")
    install = InstallView(view=coordinator.view, through=3, between=True)
    again = MembershipCoordinator(
        MembershipRules(members=2),
        0.0,
        [ViewInstalled(install=install), ViewInstalled(install=coordinator.memory.installed)],
    )
    assert again.memory.shared == coordinator.view


def beat(member: MemberState) -> Heartbeat:
    return member.beat(0.1, step=1, period=0.1)
