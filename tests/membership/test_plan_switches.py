"""The plan is in the view: switched between two steps by all members, whatever is lost, repeated or restarted."""

import pytest
from test_coordinator import beat, stand, told
from test_remote_workers import admit, begun

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.plan_requests import MOST_REQUESTS, PlanRequests
from shoal.membership.protocol import PlanRequest, ProposeView
from shoal.membership.view import MembershipView
from shoal.testing.simulator import SimulatedWorld


def play(seed: int) -> SimulatedWorld:
    world = SimulatedWorld(seed, members=2 + seed % 5, switches=True)
    world.run(40.0)
    world.check()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_operation_is_made_by_one_plan(seed: int) -> None:
    play(seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_thousand_schedules_with_switches() -> None:
    for seed in range(2000):
        play(seed)


def play_services(seed: int) -> SimulatedWorld:
    world = SimulatedWorld(seed, members=2 + seed % 5, switches=True, services=True)
    world.run(40.0)
    world.check()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_members_of_one_plan_meet_the_same_processes(seed: int) -> None:
    """However often those that were prepared end, and the coordinator with its requests."""
    play_services(seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_thousand_schedules_with_services() -> None:
    for seed in range(2000):
        play_services(seed)


def test_plans_are_switched_while_members_are_lost() -> None:
    """Or the schedules would show nothing."""
    world = play(3)
    plans = [content.plan for content in world.committed.values()]
    assert len(set(plans)) > 3


def quiet_world(members: int = 3) -> SimulatedWorld:
    return SimulatedWorld(1, members=members, faults=False, streaming=False)


def plans_of(world: SimulatedWorld) -> set[tuple[str, int]]:
    return {member.plan for member in world.living}


def test_all_workers_ask_and_the_plan_is_switched_once() -> None:
    world = quiet_world()
    world.later(6.0, lambda: [member.ask_for_plan("int8") for member in world.living])
    world.run(20.0)
    world.check()
    assert plans_of(world) == {("int8", 1)}

    assert len(world.living[0].generations) == 2  # the first view, and one more


def test_the_second_of_two_requests_in_a_row_is_what_all_train_by() -> None:
    world = quiet_world()

    def ask() -> None:
        for member in world.living:
            member.ask_for_plan("int8")
            member.ask_for_plan("fp16")

    world.later(6.0, ask)
    world.run(20.0)
    world.check()
    assert plans_of(world) == {("fp16", 2)}


def test_a_newcomer_trains_by_the_switched_plan() -> None:
    world = quiet_world()
    world.later(6.0, lambda: world.coordinator.switch("int8"))
    world.later(12.0, world.add_member)
    world.run(20.0)
    world.check()
    assert len(world.living) == 4
    assert plans_of(world) == {("int8", 1)}


def test_the_plan_survives_the_coordinator() -> None:
    world = quiet_world()
    world.later(6.0, lambda: world.coordinator.switch("int8"))
    world.later(12.0, world.coordinator.kill)
    world.later(13.0, world.coordinator.restart)
    world.later(14.0, world.add_member)  # so that the new coordinator makes a view
    world.run(25.0)
    world.check()
    assert plans_of(world) == {("int8", 1)}
    again = MembershipCoordinator(world.coordinator.rules, 0.0, list(world.coordinator.disk))
    assert (again.view.plan, again.view.switches) == ("int8", 1)


def test_a_request_outlives_the_coordinator_that_heard_it() -> None:
    world = quiet_world()

    def ask_and_kill() -> None:
        world.living[0].ask_for_plan("int8")
        world.later(0.5, world.coordinator.kill)
        world.later(2.0, world.coordinator.restart)

    world.later(6.0, ask_and_kill)
    world.run(20.0)
    world.check()
    assert plans_of(world) == {("int8", 1)}


def test_a_member_that_dies_beside_a_switch_leaves_the_others_with_one_plan() -> None:
    world = quiet_world()

    def ask_and_die() -> None:
        world.living[0].ask_for_plan("int8")
        world.later(0.9, lambda: world.living[1].die(told=True))

    world.later(6.0, ask_and_die)
    world.run(20.0)
    world.check()
    assert plans_of(world) == {("int8", 1)}


VIEW = MembershipView(7, ("w0.0",), "int8", 3)


def test_late_and_equal_numbers_change_nothing() -> None:
    requests = PlanRequests()
    requests.hear("fp16", 3, VIEW)  # the plan that stands has this number
    assert requests.wanted is None
    requests.hear("fp16", 4, VIEW)
    requests.hear("topk", 4, VIEW)  # the same request, of a worker that says something else
    assert requests.wanted == ("fp16", 4)
    requests.hear("topk", 5, VIEW)
    requests.hear("fp16", 4, VIEW)
    assert requests.wanted == ("topk", 5)


def test_a_number_far_ahead_is_not_believed() -> None:
    requests = PlanRequests()
    requests.hear("fp16", 4 + MOST_REQUESTS, VIEW)
    assert requests.wanted is None


def test_the_user_asks_for_what_there_is_or_was_asked_for() -> None:
    requests = PlanRequests()
    requests.ask("int8", VIEW)
    assert requests.wanted is None
    requests.ask("fp16", VIEW)
    requests.ask("fp16", VIEW)
    assert requests.wanted == ("fp16", 4)
    requests.ask("int8", VIEW)  # back to what there is: not what was asked for in between
    assert requests.wanted == ("int8", 5)


def test_a_request_is_over_when_its_plan_or_a_later_one_is_there() -> None:
    requests = PlanRequests()
    requests.hear("fp16", 5, VIEW)
    requests.made(VIEW)
    assert requests.wanted == ("fp16", 5)
    requests.made(MembershipView(9, ("w0.0",), "topk", 6))
    assert requests.wanted is None


def asked_by(coordinator: MembershipCoordinator, member: str) -> set[str]:
    """What is proposed after a member has asked for a plan, and all members beat."""
    coordinator.hear(PlanRequest(member=member, plan="int8", number=1), 0.0)
    for each in coordinator.view.members:
        coordinator.hear(beat(each, coordinator.view.generation), 0.0)
    return {order.view.plan for order in told(coordinator.tick(0.0), ProposeView).values()}


def test_a_remote_worker_switches_nobodys_plan() -> None:
    coordinator = begun("a", "b")
    admit(coordinator, "g1")
    assert asked_by(coordinator, "g1") == set()
    assert asked_by(coordinator, "stranger") == set()
    assert asked_by(coordinator, "a") == {"int8"}
    stand(coordinator, between=True, **dict.fromkeys(coordinator.view.members, (1, 0)))
    assert (coordinator.view.plan, coordinator.view.members) == ("int8", ("a", "b", "g1"))


def test_one_that_had_begun_the_step_keeps_all_in_the_plan_before() -> None:
    coordinator = begun("a", "b")
    assert asked_by(coordinator, "a") == {"int8"}
    where = dict.fromkeys(coordinator.view.members, (1, 0))
    stand(coordinator, between=False, **where)
    assert coordinator.proposal is not None
    assert coordinator.proposal.view.plan == ""
    stand(coordinator, **where)
    assert (coordinator.view.plan, coordinator.view.generation) == ("", 3)
    assert asked_by(coordinator, "a") == {"int8"}  # and it is tried again
