"""A remote worker that lies about leases of samples loses its membership; it costs others no sample and no wait."""

import msgspec
import pytest
from test_coordinator import beat, told
from test_remote_workers import admit, begun

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.lease_book import MOST_AHEAD, MOST_IDLE
from shoal.membership.log_entries import Effect, MemberLost, ViewInstalled, WriteEntry
from shoal.membership.protocol import HeldLease, LeaseRequest, LeasesClosing, SamplesLeased

ITEMS, BATCH, STEPS = 400, 4, 2


def asks(member: str, number: int = 0, round_: int = 0, left: int = 0, **change: object) -> LeaseRequest:
    """What a worker whose training thread waits says, when positions from `left` on are not counted yet."""
    said = LeaseRequest(
        member=member,
        key=(0, 0, 0),
        round=round_,
        pool=((left, ITEMS),),
        batch=BATCH,
        least=1,
        steps=STEPS,
        number=number,
        wants=True,
        waits=True,
    )
    return msgspec.structs.replace(said, **change)


def training(*members: str) -> MembershipCoordinator:
    coordinator = begun(*[member for member in members if member[0] != "g"])
    admit(coordinator, *[member for member in members if member[0] == "g"])
    return coordinator


def leased(effects: list[Effect], member: str) -> SamplesLeased:
    answer = told(effects, SamplesLeased)[member]
    assert isinstance(answer, SamplesLeased)
    return answer


@pytest.mark.parametrize("key", [(0, 2**53, 0), (0, 0, 0), (7, 0, 0)])
def test_a_remote_worker_begins_no_pass(key: tuple[int, int, int]) -> None:
    coordinator = training("a", "b", "g1")
    for loader in range(100):
        coordinator.hear(asks("g1", key=(key[0] + loader, *key[1:]), batch=1), 0.0)
    assert not coordinator._leases._passes
    coordinator.hear(asks("a"), 0.0)
    effects = coordinator.hear(asks("b"), 0.0)
    assert leased(effects, "a").ranges == ((0, 4),)
    assert leased(effects, "b").ranges == ((4, 8),)
    for loader in range(100):
        coordinator.hear(asks("g1", key=(loader, 9, 9)), 0.0)
    assert leased(coordinator.hear(asks("a", 1), 0.0), "a").ranges == ((8, 12),)


@pytest.mark.parametrize(
    "change",
    [
        {"held": (HeldLease(ahead=2**53, ranges=()),)},
        {"held": (HeldLease(ahead=5, ranges=((0, ITEMS),)),)},
        {"reached": 2**53},
        {"round": 2**53, "pool": ()},
    ],
)
def test_of_a_new_pass_nobody_holds_anything_whatever_a_remote_worker_says(change: dict[str, object]) -> None:
    coordinator = training("a", "g1")
    coordinator.hear(asks("g1", **change), 0.0)
    lease = leased(coordinator.hear(asks("a"), 0.0), "a")
    coordinator.hear(asks("g1", **change), 0.0)
    assert (lease.ahead, lease.ranges) == (0, ((0, 4),))
    assert leased(coordinator.hear(asks("a", 1), 0.0), "a").ahead == 0


def test_a_new_pass_begins_without_a_remote_worker_that_says_nothing() -> None:
    coordinator = training("a", "g1")
    assert leased(coordinator.hear(asks("a"), 0.0), "a").ranges == ((0, 4),)


@pytest.mark.parametrize("change", [{"batch": 2**53}, {"least": 1000}, {"steps": 2**53}, {"fastest": True}])
def test_a_remote_worker_leases_by_the_terms_of_the_runs_own(change: dict[str, int]) -> None:
    coordinator = training("a", "g1")
    coordinator.hear(asks("a"), 0.0)
    coordinator.hear(asks("g1", **change), 0.0)
    assert set(coordinator.memory.lost) == {"g1"}


def test_a_remote_worker_ends_a_round_only_after_it_was_given_its_own_batches() -> None:
    coordinator = training("a", "g1")
    coordinator.hear(asks("a", fastest=True), 0.0)
    for number in range(STEPS):
        closes = asks("g1", fastest=True, closes=True, wants=False)
        assert not told(coordinator.hear(closes, 0.0), LeasesClosing)
        coordinator.hear(asks("g1", number, fastest=True), 0.0)
    assert set(told(coordinator.hear(closes, 0.0), LeasesClosing)) == {"a"}


def test_a_remote_worker_holds_a_bounded_number_of_leases_for_later_rounds() -> None:
    coordinator = training("a", "g1")
    coordinator.hear(asks("a"), 0.0)
    given = [leased(coordinator.hear(asks("g1", number), 0.0), "g1").ranges for number in range(200)]
    assert sum(map(bool, given)) <= 2 * STEPS + MOST_AHEAD
    assert leased(coordinator.hear(asks("a", 1), 0.0), "a").ranges


def test_a_remote_worker_that_takes_samples_and_does_not_train_them_is_given_up() -> None:
    coordinator = training("a", "g1")
    for round_ in range(MOST_IDLE):
        coordinator.hear(asks("a", round_, round_), 0.0)
        coordinator.hear(asks("g1", 2 * round_, round_), 0.0)
        coordinator.hear(asks("g1", 2 * round_ + 1, round_), 0.0)
        assert not coordinator.memory.lost
    coordinator.hear(asks("a", MOST_IDLE, MOST_IDLE), 0.0)
    coordinator.hear(asks("g1", 2 * MOST_IDLE, MOST_IDLE), 0.0)
    assert set(coordinator.memory.lost) == {"g1"}
    assert "trained less than half" in coordinator.memory.lost["g1"]


def test_one_that_trains_what_it_takes_stays() -> None:
    coordinator = training("a", "g1")
    for round_ in range(3 * MOST_IDLE):
        left = 2 * BATCH * round_
        coordinator.hear(asks("a", round_, round_, left), 0.0)
        assert leased(coordinator.hear(asks("g1", round_, round_, left), 0.0), "g1").ranges
    assert not coordinator.memory.lost


def restarted() -> MembershipCoordinator:
    """A coordinator that is started again in the middle of a pass."""
    before = training("a", "g1")
    after = MembershipCoordinator(MembershipRules(members=1), 0.0, [ViewInstalled(install=before.memory.installed)])
    for member in ("a", "g1"):
        after.hear(beat(member, after.view.generation), 0.0)
    return after


def test_after_a_restart_what_a_remote_worker_holds_is_not_given_to_others() -> None:
    coordinator = restarted()
    held = (HeldLease(ahead=0, ranges=((4, 8),)),)
    assert not told(coordinator.hear(asks("a", reached=4), 0.0), SamplesLeased)
    effects = coordinator.hear(asks("g1", held=held, reached=8, wants=False), 0.0)
    assert leased(effects, "a").ranges == ((8, 12),)


@pytest.mark.parametrize("held", [HeldLease(ahead=2**53, ranges=()), HeldLease(ahead=1, ranges=((0, 2**53),))])
def test_after_a_restart_a_remote_worker_holds_no_more_than_it_can_have_been_given(held: HeldLease) -> None:
    coordinator = restarted()
    coordinator.hear(asks("a"), 0.0)
    coordinator.hear(asks("g1", held=(held,)), 0.0)
    assert set(coordinator.memory.lost) == {"g1"}


def test_after_a_restart_a_remote_worker_that_does_not_say_what_it_holds_is_given_up() -> None:
    coordinator = restarted()
    effects: list[Effect] = []
    for tenth in range(300):
        now = tenth / 10
        for member in ("a", "g1"):
            coordinator.hear(beat(member, coordinator.view.generation), now)
        coordinator.hear(asks("a"), now)
        effects += coordinator.tick(now)
    lost = [effect.entry for effect in effects if isinstance(effect, WriteEntry)]
    assert [entry.member for entry in lost if isinstance(entry, MemberLost)] == ["g1"]
    assert "which samples it holds" in coordinator.memory.lost["g1"]
