"""The coordinator's decisions one by one; what random schedules make of them is in test_simulated.py."""

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import Effect, Entry, MemberLost, SendMessage, ViewInstalled, WriteEntry
from shoal.membership.proposal import decide
from shoal.membership.protocol import (
    Heartbeat,
    InstallView,
    JoinRequest,
    LeaveRequest,
    MemberEvicted,
    MemberInfo,
    ProcessExited,
    ProposeAck,
    ProposeView,
    ProtocolMessage,
    StreamStateFrom,
    StreamStateTo,
)


def told(effects: list[Effect], kind: type[ProtocolMessage]) -> dict[str, ProtocolMessage]:
    return {e.member: e.order for e in effects if isinstance(e, SendMessage) and isinstance(e.order, kind)}


def written(effects: list[Effect]) -> list[Entry]:
    return [e.entry for e in effects if isinstance(e, WriteEntry)]


def beat(member: str, generation: int = 0, **more: float) -> Heartbeat:
    return Heartbeat(member=member, generation=generation, promised=generation, applied=0, **more)  # type: ignore[arg-type]


def stand(coordinator: MembershipCoordinator, between: bool = False, **where: tuple[int, int]) -> list[Effect]:
    """All members of the proposal answer; `where` says (applied, formed) of those that have state."""
    assert coordinator.proposal is not None
    view, effects, now = coordinator.proposal.view, [], 0.0
    for member in view.members:
        applied, formed = where.get(member, (0, 0))
        effects += coordinator.hear(
            ProposeAck(
                member=member,
                generation=view.generation,
                applied=applied,
                formed=formed,
                blank=member not in where,
                between=between and member in where,
            ),
            now,
        )
    return effects


def gathered(*members: str) -> MembershipCoordinator:
    """A coordinator whose members have begun to train."""
    coordinator = MembershipCoordinator(MembershipRules(members=len(members)), 0.0)
    for member in members:
        coordinator.hear(JoinRequest(member=member), 0.0)
    stand(coordinator)
    return coordinator


def test_the_first_view_has_no_donor() -> None:
    coordinator = gathered("a", "b")
    install = coordinator.memory.installed
    assert (install.view.members, install.fresh, install.donor) == (("a", "b"), ("a", "b"), "")


def test_the_first_view_waits_for_all() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=2), 0.0)
    assert not told(coordinator.hear(JoinRequest(member="a"), 0.0), ProposeView)
    assert set(told(coordinator.hear(JoinRequest(member="b"), 0.0), ProposeView)) == {"a", "b"}


def knock(coordinator: MembershipCoordinator, step: int = 10) -> ProposeView:
    """Somebody comes while the others train: what they are told."""
    for member in coordinator.view.members:
        coordinator.hear(beat(member, coordinator.view.generation, step=step, period=0.1), 1.0)
    coordinator.hear(JoinRequest(member="new"), 1.0)
    proposal = told(coordinator.tick(1.0), ProposeView)["new"]
    assert isinstance(proposal, ProposeView)
    return proposal


def test_who_comes_later_enters_between_two_steps_and_gets_its_state_from_a_member() -> None:
    coordinator = gathered("a", "b")
    assert knock(coordinator, step=10).step > 10 + 1.0 / 0.1
    install = told(stand(coordinator, between=True, a=(7, 0), b=(7, 0)), InstallView)["new"]
    assert isinstance(install, InstallView)
    assert (install.fresh, install.donor, install.through, install.between) == (("new",), "a", 7, True)


def test_if_somebody_is_in_the_middle_of_the_step_the_newcomer_waits_for_a_later_one() -> None:
    coordinator = gathered("a", "b")
    first = knock(coordinator)
    effects = stand(coordinator, between=False, a=(7, 0), b=(7, 0))
    now = told(effects, ProposeView)["b"]
    assert isinstance(now, ProposeView)
    assert now.step == 0, "b may wait for the step a stands in the middle of: it need not any longer"
    assert set(told(stand(coordinator, a=(7, 0), b=(7, 0)), InstallView)) == {"a", "b"}
    for member in ("a", "b"):
        generation = coordinator.view.generation
        coordinator.hear(beat(member, generation, step=10, period=0.1), 1.1)
    again = told(coordinator.tick(1.2), ProposeView)["new"]
    assert isinstance(again, ProposeView)
    assert again.step > first.step


def test_the_others_go_on_without_a_newcomer_that_does_not_answer_and_ask_it_again_later() -> None:
    coordinator = gathered("a", "b")
    knock(coordinator)
    generation = coordinator.proposal.view.generation  # type: ignore[union-attr]
    for member in ("a", "b"):
        ack = ProposeAck(member=member, generation=generation, applied=7, formed=0, between=True)
        coordinator.hear(ack, 2.0)
    assert "new" in told(coordinator.tick(2.9), ProposeView), "it has a second, and is reminded"
    assert set(told(coordinator.tick(3.1), ProposeView)) == {"a", "b"}
    stand(coordinator, a=(7, 0), b=(7, 0))
    assert coordinator.view.members == ("a", "b")
    for moment, asked in ((4.0, False), (5.2, True)):
        for member in ("a", "b", "new"):
            coordinator.hear(beat(member, coordinator.view.generation * (member != "new"), step=20, period=0.1), moment)
        assert ("new" in told(coordinator.tick(moment), ProposeView)) == asked


def test_a_death_that_is_told_makes_a_view_at_once() -> None:
    coordinator = gathered("a", "b", "c")
    before = coordinator.view.generation
    effects = coordinator.hear(ProcessExited(member="b", reason="SIGKILL"), 1.0)
    assert set(told(effects, ProposeView)) == {"a", "c"}
    assert MemberLost(member="b", reason="SIGKILL") in written(effects)
    stand(coordinator, a=(3, 0), c=(3, 0))
    assert coordinator.view.members == ("a", "c")
    assert coordinator.view.generation > before


def test_what_is_said_was_written_before() -> None:
    coordinator = gathered("a", "b")
    coordinator.hear(LeaveRequest(member="b"), 1.0)
    effects = stand(coordinator, a=(1, 0))
    kinds = [type(e.entry if isinstance(e, WriteEntry) else e.order) for e in effects]
    assert kinds.index(ViewInstalled) < kinds.index(InstallView)


def test_silence_is_loss_within_three_seconds_or_four_steps() -> None:
    """Somewhat before, so that the launcher has heard of it by then."""
    coordinator = gathered("a", "b", "c")
    for moment in range(1, 40):
        now = moment / 10
        effects = coordinator.tick(now)
        assert bool(told(effects, MemberEvicted)) == (now == 2.8)
        for member in ("a", "b"):
            coordinator.hear(beat(member, coordinator.view.generation), now)
    assert "c" in coordinator.memory.lost
    slow = gathered("a", "b", "c")
    for member in "abc":
        slow.hear(beat(member, slow.view.generation, period=2.0), 0.0)
    for moment in range(1, 100):
        slow.tick(moment / 10)
        for member in ("a", "b"):
            slow.hear(beat(member, slow.view.generation, period=2.0), moment / 10)
        assert ("c" in slow.memory.lost) == (moment / 10 > 7.7), moment


def test_of_members_that_fall_silent_together_none_is_the_first_to_be_lost() -> None:
    """A coordinator that is cut off heard each of them last at another moment."""
    coordinator = gathered("a", "b", "c")
    for number, member in enumerate(("a", "b", "c")):
        coordinator.hear(beat(member, coordinator.view.generation), 0.1 * number)
    for moment in range(3, 600):
        assert not told(coordinator.tick(moment / 10), MemberEvicted)
    assert not coordinator.memory.lost


def test_a_member_that_beats_but_does_not_train_is_lost_too() -> None:
    coordinator = gathered("a", "b", "c")
    for moment in range(1, 700):
        coordinator.tick(moment / 10)
        for member in "abc":
            idle = moment / 10 if member == "c" else 0.0
            coordinator.hear(beat(member, coordinator.view.generation, idle=idle), moment / 10)
        assert ("c" in coordinator.memory.lost) == (moment / 10 > 60.1), moment
    assert coordinator.memory.lost["c"].startswith("its training thread has not run for 60.")


def test_a_coordinator_that_is_cut_off_waits_for_the_leases() -> None:
    coordinator = gathered("a", "b", "c")
    moment = 0.0
    while moment < 100.0:
        moment += 0.5
        assert not coordinator.tick(moment)
    while moment < 130.0:
        moment += 0.5
        coordinator.tick(moment)
    assert set(coordinator.memory.lost) == {"a", "b", "c"}


def test_after_it_was_cut_off_whoever_is_heard_later_gets_time() -> None:
    coordinator = gathered("a", "b", "c")
    for moment in range(1, 21):
        assert not coordinator.tick(moment / 2)
    for moment in range(21, 60):
        now = moment / 2
        for member in ("a", "b"):
            coordinator.hear(beat(member, coordinator.view.generation), now)
        coordinator.tick(now)
        assert ("c" in coordinator.memory.lost) == (now > 16.0), now


def test_its_own_sleep_is_nobodys_silence() -> None:
    coordinator = gathered("a", "b", "c")
    assert not coordinator.tick(1000.0)
    coordinator.hear(beat("a", coordinator.view.generation), 1000.1)
    assert not coordinator.tick(1001.0)


def test_the_lost_are_not_let_in_again() -> None:
    coordinator = gathered("a", "b")
    coordinator.hear(ProcessExited(member="b", reason="SIGKILL"), 1.0)
    assert isinstance(told(coordinator.hear(JoinRequest(member="b"), 2.0), MemberEvicted)["b"], MemberEvicted)
    assert isinstance(told(coordinator.hear(beat("b", 1), 2.0), MemberEvicted)["b"], MemberEvicted)


def test_the_log_brings_everything_back() -> None:
    log: list[Entry] = []
    coordinator = MembershipCoordinator(MembershipRules(members=3), 0.0)
    for member in ("a", "b", "c"):
        log += written(coordinator.hear(JoinRequest(member=member), 0.0))
    log += written(stand(coordinator))
    log += written(coordinator.hear(ProcessExited(member="c", reason="SIGKILL"), 1.0))
    again = MembershipCoordinator(MembershipRules(), 5.0, log)
    assert again.view == coordinator.view
    assert again.memory == coordinator.memory
    # a proposal that died with it is made again, with a number nobody has heard of
    asked = coordinator.proposal.view.generation if coordinator.proposal else 0
    effects = again.hear(Heartbeat(member="a", generation=again.view.generation, promised=asked, applied=4), 5.1)
    assert min(o.view.generation for o in told(effects, ProposeView).values() if isinstance(o, ProposeView)) > asked


def test_an_install_that_was_missed_is_said_again() -> None:
    coordinator = gathered("a", "b")
    effects = coordinator.hear(
        Heartbeat(member="b", generation=0, promised=coordinator.view.generation, applied=0), 0.5
    )
    assert told(effects, InstallView)["b"] == coordinator.memory.installed


def test_the_first_view_waits_for_as_many_as_are_expected() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=3, gather=10.0), 0.0)
    assert not told(coordinator.hear(JoinRequest(member="a"), 0.0), ProposeView)
    assert not told(coordinator.hear(JoinRequest(member="b"), 1.0), ProposeView)
    assert set(told(coordinator.hear(JoinRequest(member="c"), 2.0), ProposeView)) == {"a", "b", "c"}


def test_who_dies_before_the_first_view_is_not_waited_for() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=3), 0.0)
    for member in ("a", "b"):
        coordinator.hear(JoinRequest(member=member), 0.0)
    coordinator.hear(ProcessExited(member="c", reason="SIGKILL"), 0.5)
    assert set(told(coordinator.tick(0.6), ProposeView)) == {"a", "b"}
    assert told(coordinator.hear(JoinRequest(member="c"), 0.7), MemberEvicted), "its last words came after it"


def test_a_resumed_run_waits_for_its_new_members_and_not_for_the_dead() -> None:
    log: list[Entry] = [ViewInstalled(install=gathered("a", "b").memory.installed)]
    again = MembershipCoordinator(MembershipRules(members=2), 100.0, log)
    for member in ("a", "b"):
        again.hear(ProcessExited(member=member, reason="ended"), 100.0)
    assert not told(again.hear(JoinRequest(member="c"), 101.0), ProposeView)
    assert not told(again.tick(101.1), ProposeView)
    effects = again.hear(JoinRequest(member="d"), 102.0)
    assert set(told(effects, ProposeView)) == {"c", "d"}
    stand(again)
    assert again.view.members == ("c", "d")
    assert again.view.generation > 1


def test_the_first_view_does_not_wait_for_ever() -> None:
    coordinator = MembershipCoordinator(MembershipRules(members=3, gather=2.0), 0.0)
    coordinator.hear(JoinRequest(member="a"), 0.0)
    assert not told(coordinator.tick(1.0), ProposeView)
    coordinator.hear(beat("a"), 1.5)
    assert set(told(coordinator.tick(2.1), ProposeView)) == {"a"}


def test_a_loss_that_was_written_and_not_said_is_acted_on_after_a_restart() -> None:
    coordinator = gathered("a", "b", "c")
    log = [ViewInstalled(install=coordinator.memory.installed), MemberLost(member="c", reason="SIGKILL")]
    again = MembershipCoordinator(MembershipRules(), 5.0, log)
    assert set(told(again.tick(5.1), ProposeView)) == {"a", "b"}


def test_whoever_waits_for_a_view_is_told_for_whom() -> None:
    coordinator = gathered("a", "b", "c")
    coordinator.hear(ProcessExited(member="c", reason="SIGKILL"), 1.0)
    assert coordinator.proposal is not None
    generation = coordinator.proposal.view.generation
    coordinator.hear(ProposeAck(member="a", generation=generation, applied=1), 1.1)
    said = told(coordinator.tick(1.9), ProposeView)
    assert {m: o.missing for m, o in said.items() if isinstance(o, ProposeView)} == {"a": ("b",), "b": ("b",)}


def standing(member: str, applied: int, formed: int = 0) -> ProposeAck:
    return ProposeAck(member=member, generation=9, applied=applied, formed=formed)


def test_decisions() -> None:
    assert decide([]) == 0
    assert decide([standing("a", 4), standing("b", 4)]) == 4
    assert decide([standing("a", 4, 2), standing("b", 4)]) == 4, "not everybody holds it"
    assert decide([standing("a", 4, 2), standing("b", 4, 2)]) == 5
    assert decide([standing("a", 4, 2), standing("b", 4, 3)]) == 4, "two different results"
    assert decide([standing("a", 5), standing("b", 4, 2)]) == 5, "somebody completed it"
    assert decide([standing("a", 5, 3), standing("b", 4, 3)]) == 5


def test_who_waits_for_a_loan_is_introduced_to_the_donor_and_not_let_in_before_it_wants() -> None:
    coordinator = gathered("a", "b")
    for member in ("a", "b"):
        coordinator.hear(beat(member, coordinator.view.generation, step=10, period=0.5), 1.0)
    info = MemberInfo("tcp://10.0.0.3:9", "k" * 40, "far")
    effects = coordinator.hear(JoinRequest(member="new", info=info, waits=True), 1.0)
    assert told(effects, StreamStateTo) == {"a": StreamStateTo(generation=1, member="new", info=info)}
    offer = told(effects, StreamStateFrom)["new"]
    assert isinstance(offer, StreamStateFrom)
    assert (offer.generation, offer.member, offer.patience) == (1, "a", 5.0 + 4 * 0.5)
    assert not told(coordinator.tick(1.1), ProposeView)
    coordinator.hear(JoinRequest(member="new", info=info), 1.2)
    proposal = told(coordinator.tick(1.2), ProposeView)["new"]
    assert isinstance(proposal, ProposeView)
    for member in proposal.view.members:
        new = member == "new"
        standing = ProposeAck(
            member=member, generation=proposal.view.generation, applied=4, blank=new, streamed=new, between=not new
        )
        effects = coordinator.hear(standing, 1.3)
    install = told(effects, InstallView)["a"]
    assert isinstance(install, InstallView)
    assert (install.fresh, install.streamed, install.donor) == (("new",), ("new",), "a")


def test_nobody_is_introduced_while_a_view_is_made_or_where_nobody_is() -> None:
    coordinator = gathered("a", "b")
    coordinator.hear(ProcessExited(member="b", reason="killed"), 1.0)
    assert coordinator.proposal is not None
    assert not told(coordinator.hear(JoinRequest(member="new", waits=True), 1.0), StreamStateFrom)
    assert told(stand(coordinator, a=(4, 0)), InstallView)
    assert set(told(coordinator.hear(JoinRequest(member="new", waits=True), 1.0), StreamStateFrom)) == {"new"}
    effects = coordinator.hear(ProcessExited(member="a", reason="killed"), 1.0)
    assert set(told(effects, ProposeView)) == {"new"}, "all others wait for a stream"
