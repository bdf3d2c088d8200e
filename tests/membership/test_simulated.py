"""Twenty-five random schedules of faults in virtual time; a failing one is replayed by its seed."""

import itertools

import pytest

from shoal.membership import proposal
from shoal.membership.protocol import ProposeAck
from shoal.testing.simulator import SimulatedWorld


def play(seed: int, streaming: bool = True) -> None:
    world = SimulatedWorld(seed, members=2 + seed % 5, streaming=streaming)
    world.run(40.0)
    world.check()


FOUND = (228, 846, 3147, 6506, 8168)
"""Seeds of `make soak` that failed once, when no state was streamed yet."""


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_members_agree_and_go_on(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_what_failed_once_does_not_any_more(seed: int) -> None:
    play(seed, streaming=False)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_schedules(thousand: int) -> None:
    for seed in range(1000 * thousand, 1000 + 1000 * thousand):
        play(seed)


def test_a_seed_tells_the_whole_story() -> None:
    """What failed once fails again: nothing but the seed decides."""
    first, second = SimulatedWorld(7), SimulatedWorld(7)
    for world in (first, second):
        world.run(40.0)
    assert first.committed == second.committed
    assert len(first.committed) > 100


def caught(seeds: range) -> bool:
    for seed in seeds:
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def test_a_hasty_decision_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only some hold must not count as complete."""

    def hasty(standings: list[ProposeAck]) -> int:
        return max((s.applied + bool(s.formed) for s in standings), default=0)

    monkeypatch.setattr(proposal, "decide", hasty)
    assert caught(range(15, 55))


def test_forgetting_what_was_complete_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(standings: list[ProposeAck]) -> int:
        return min((s.applied for s in standings), default=0)

    monkeypatch.setattr(proposal, "decide", forgetful)
    assert caught(range(40))


def longest_stop(late: float) -> tuple[float, bool]:
    """How long the others stand still while a newcomer hears everything `late` seconds late, up to second 40; and
    whether it is in later, when it is as quick as they are."""
    world = SimulatedWorld(3, members=3, faults=False, streaming=False)
    made: list[int] = []

    def look() -> None:
        made.append(len(world.members["m0"].history))
        world.later(0.1, look)

    def join() -> None:
        slow = world.add_member()
        hear = slow.receive

        def receive(message: object) -> None:
            world.later(late if world.now < 40.0 else 0.0, lambda: hear(message))

        slow.receive = receive  # type: ignore[method-assign]

    world.later(5.0, look)
    world.later(5.0, join)
    world.run(60.0)
    world.check()
    stops = [len(list(same)) * 0.1 for _, same in itertools.groupby(made)]
    return max(stops), world.members["m3"].machine.view == world.members["m0"].machine.view


def test_a_newcomer_that_answers_late_holds_nobody_for_long_and_enters_when_it_is_quick() -> None:
    usual, _ = longest_stop(0.0)
    slow, entered = longest_stop(6.0)
    assert entered
    assert slow < usual + 1.5, "the coordinator looks ten times a second, and waits for one second"


def test_waiting_for_a_newcomer_that_answers_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.membership.view_change.ViewChange.put_off", lambda self, now: None)
    assert longest_stop(6.0)[0] > 3.0


def cut_off() -> None:
    """The coordinator loses sight of all members, but a newcomer reaches it."""
    world = SimulatedWorld(1, members=3, faults=False)
    world.later(5.0, lambda: world.part(["coordinator", world.add_member().id], 30.0))
    world.run(40.0)
    world.check()


def test_two_runs_never_go_on_side_by_side() -> None:
    cut_off()


def test_members_without_a_lease_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.membership.member.MemberState.free", lambda self, now: self.settled)
    with pytest.raises(AssertionError, match="beside a newer run"):
        cut_off()
