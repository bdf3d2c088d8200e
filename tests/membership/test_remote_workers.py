"""Members of other machines: they never become worker 0, begin no run, and end none by being many."""

import msgspec
from test_coordinator import beat, stand, told, written

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import LEFT, LEFT_EARLY, Effect, MemberLost, ViewInstalled
from shoal.membership.protocol import (
    InstallView,
    JoinRequest,
    LeaveRequest,
    MemberEvicted,
    MemberInfo,
    ProcessExited,
    ProposeView,
    SuspectMember,
)


def guest(member: str, **change: str) -> MemberInfo:
    """Where a remote worker is reached, and by which key: its own."""
    address, public = f"tcp://10.0.0.2:{7000 + int(member[1:])}", "x" * 38 + f"{int(member[1:]):02}"
    return msgspec.structs.replace(MemberInfo(address, public, "there", remote=True), **change)


def hello(coordinator: MembershipCoordinator, *members: str, now: float = 0.0) -> list[Effect]:
    """Those whose name begins with g are guests."""
    return [
        effect
        for member in members
        for effect in coordinator.hear(
            JoinRequest(member=member, info=guest(member) if member[0] == "g" else MemberInfo()), now
        )
    ]


def begun(*members: str) -> MembershipCoordinator:
    coordinator = MembershipCoordinator(MembershipRules(members=len(members)), 0.0)
    hello(coordinator, *members)
    stand(coordinator)
    return coordinator


def admit(coordinator: MembershipCoordinator, *members: str) -> InstallView:
    """Newcomers enter between two steps; all others have state."""
    hello(coordinator, *members)
    view = coordinator.view
    for member in view.members:
        coordinator.hear(beat(member, view.generation), 0.0)
    coordinator.tick(0.0)
    stand(coordinator, between=True, **dict.fromkeys(view.members, (1, 0)))
    return coordinator.memory.installed


def test_the_first_view_waits_for_the_runs_own_and_is_theirs() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=2), 0.0)
    assert not told(hello(coordinator, "g1", "g2", "g3", "a"), ProposeView)
    assert set(told(hello(coordinator, "b"), ProposeView)) == {"a", "b"}


def test_guests_come_last_whoever_came_first() -> None:
    coordinator = begun("a", "b")
    assert admit(coordinator, "g1").view.members == ("a", "b", "g1")
    assert admit(coordinator, "c", "g2").view.members == ("a", "b", "c", "g1", "g2")
    coordinator.hear(ProcessExited(member="a", reason="SIGKILL"), 0.0)
    stand(coordinator, b=(1, 0), c=(1, 0), g1=(1, 0), g2=(1, 0))
    install = coordinator.memory.installed
    assert (install.view.members, install.donor) == (("b", "c", "g1", "g2"), "b")
    assert [info.remote for info in install.infos] == [False, False, True, True]


def test_a_restarted_coordinator_still_knows_who_is_a_guest() -> None:
    coordinator = begun("a")
    admit(coordinator, "g1")
    again = MembershipCoordinator(
        MembershipRules(members=1), 5.0, [ViewInstalled(install=coordinator.memory.installed)]
    )
    hello(again, "b", now=5.0)
    for member in ("a", "g1"):
        again.hear(beat(member, again.view.generation), 5.0)
    again.tick(5.0)
    assert again.proposal is not None
    assert again.proposal.view.members == ("a", "b", "g1")


def test_guests_alone_do_not_train_on() -> None:
    coordinator = begun("a")
    admit(coordinator, "g1", "g2")
    effects = coordinator.hear(ProcessExited(member="a", reason="SIGKILL"), 0.0)
    assert set(told(effects, MemberEvicted)) == {"a", "g1", "g2"}
    assert not told(effects, ProposeView)
    assert all("the run began on" in coordinator.memory.lost[guest] for guest in ("g1", "g2"))
    assert {e.member for e in written(effects) if isinstance(e, MemberLost)} == {"a", "g1", "g2"}


def test_guests_finish_what_the_others_have_finished() -> None:
    coordinator = begun("a")
    admit(coordinator, "g1", "g2")
    effects = coordinator.hear(LeaveRequest(member="a"), 0.0)
    assert set(told(effects, ProposeView)) == {"g1", "g2"}
    assert coordinator.memory.lost == {"a": LEFT}


def test_who_leaves_early_does_not_say_that_all_is_over() -> None:
    coordinator = begun("a")
    admit(coordinator, "g1")
    coordinator.hear(LeaveRequest(member="g1", early=True), 0.0)
    assert coordinator.memory.lost == {"g1": LEFT_EARLY}


def test_many_silent_guests_are_given_up_at_once() -> None:
    """They cannot train on without the others, so nobody waits for their leases."""
    coordinator = begun("a")
    admit(coordinator, "g1", "g2", "g3")
    for moment in (1.0, 2.0, 3.0, 4.0):
        coordinator.hear(beat("a", coordinator.view.generation), moment)
        coordinator.tick(moment)
    assert set(coordinator.memory.lost) == {"g1", "g2", "g3"}


def test_guests_that_do_not_hear_one_of_the_runs_own_are_given_up_and_not_that_one() -> None:
    coordinator = begun("a", "b")
    admit(coordinator, "g1", "g2", "g3")
    for tenth in range(1, 21):
        for member in coordinator.view.members:
            coordinator.hear(beat(member, coordinator.view.generation), tenth / 10)
        for guest in ("g1", "g2"):
            coordinator.hear(SuspectMember(member=guest, of="a", closed=guest == "g2"), tenth / 10)
        coordinator.tick(tenth / 10)
    assert coordinator.memory.lost == {"g1": "no longer heard by a"}
