"""Workers of other machines in the first view of a run: they are waited for, and not for ever."""

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import Effect, SendMessage
from shoal.membership.protocol import JoinRequest, MemberInfo, ProposeAck, ProposeView


def info(number: int) -> MemberInfo:
    return MemberInfo(f"tcp://10.0.0.{number}:7000", str(number) * 40, remote=True)


def proposed(effects: list[Effect]) -> tuple[str, ...]:
    found = [e.order.view.members for e in effects if isinstance(e, SendMessage) and isinstance(e.order, ProposeView)]
    return found[0] if found else ()


def waiting(remote: int) -> MembershipCoordinator:
    """The run's own worker is there."""
    coordinator = MembershipCoordinator(MembershipRules(members=1, remote=remote), 0.0)
    assert not proposed(coordinator.hear(JoinRequest(member="w0"), 0.0))
    assert coordinator.founding
    return coordinator


def test_the_first_view_waits_for_workers_of_other_machines_and_has_them_last() -> None:
    coordinator = waiting(2)
    assert not proposed(coordinator.hear(JoinRequest(member="g1", info=info(1)), 0.1))
    assert proposed(coordinator.hear(JoinRequest(member="g2", info=info(2)), 0.2)) == ("w0", "g1", "g2")
    for member in ("w0", "g1", "g2"):
        coordinator.hear(ProposeAck(member=member, generation=1, applied=0, blank=True), 0.3)
    install = coordinator.memory.installed
    assert (install.view.members, install.fresh, install.donor) == (("w0", "g1", "g2"), ("w0", "g1", "g2"), "")
    assert not coordinator.founding


def test_a_machine_that_cannot_start_is_not_waited_for() -> None:
    coordinator = waiting(2)
    coordinator.hear(JoinRequest(member="g1", info=info(1)), 0.1)
    assert proposed(coordinator.expect(1, 0.2)) == ("w0", "g1")


def test_the_wait_has_an_end() -> None:
    coordinator = waiting(1)
    late = coordinator.rules.gather + 1.0
    coordinator.roster.statuses["w0"].heard = late
    assert proposed(coordinator.tick(late)) == ("w0",)


def test_remote_workers_found_nothing_by_themselves() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=1, remote=1), 0.0)
    assert not proposed(coordinator.hear(JoinRequest(member="g1", info=info(1)), 0.0))
    assert not proposed(coordinator.tick(0.1))


def test_without_an_engine_they_come_later_as_ever() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=1), 0.0)
    coordinator.hear(JoinRequest(member="g1", info=info(1)), 0.0)
    assert proposed(coordinator.hear(JoinRequest(member="w0"), 0.1)) == ("w0",)
