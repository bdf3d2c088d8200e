"""Slots for machines that join: promised once, to one key, in numbers that the key is good for."""

import pytest

from shoal.hosts.status_board import MOST_WORKERS
from shoal.membership.grants import GRANTS, PATIENCE, PERIOD, RETRY, JoinPolicy, SlotGranted, SlotGrants
from shoal.membership.invitation import RunBrief, RunQuery, find_version_mismatch
from shoal.membership.protocol import Heartbeat, JoinRequest, MemberInfo
from shoal.membership.session import slot_of

VERSIONS = {"shoal": "0.3.1", "torch": "2.13.0+cpu"}
OURS, THEIRS = "a" * 40, "b" * 40
BRIEF = RunBrief(run="one", name="s.py", script=b"pass", arguments=(), plan="allreduce", seed=0, checkpoint="auto")


def grants(lost: dict[str, str] | None = None, most: int = 3) -> SlotGrants:
    guests = {OURS.encode(): most, THEIRS.encode(): 1}
    return SlotGrants(JoinPolicy(BRIEF, VERSIONS, guests, first=2), {} if lost is None else lost)


def ask(workers: int = 1, token: int = 0, slot: int = -1, **versions: str) -> RunQuery:
    return RunQuery(workers=workers, token=f"{token:032x}", versions=VERSIONS | versions, slot=slot)


def take(here: SlotGrants, what: RunQuery, key: str = OURS) -> list[str]:
    assert not here.refusal(what, key)
    chosen = here.choose(what, key)
    for granted in chosen:
        here.add(granted, 0.0)
    return [granted.member for granted in chosen]


def test_slots_follow_those_of_the_run_and_no_id_comes_twice() -> None:
    lost: dict[str, str] = {}
    here, seen = grants(lost), set[str]()
    for token in range(40):
        names = take(here, ask(3, token))
        assert len({slot_of(name) for name in names}) == 3
        assert all(2 <= slot_of(name) < MOST_WORKERS for name in names)
        assert not seen & set(names)
        seen |= set(names)
        lost |= dict.fromkeys(names, "left")


def test_a_slot_is_used_again_when_there_is_no_other_and_never_while_it_is_taken() -> None:
    lost: dict[str, str] = {}
    here = grants(lost, most=MOST_WORKERS)
    names = take(here, ask(MOST_WORKERS - 2))
    assert not here.choose(ask(1, 1), THEIRS), "all are taken"
    lost[names[7]] = "left"
    (again,) = take(here, ask(1, 2), THEIRS)
    assert slot_of(again) == slot_of(names[7])
    assert again != names[7]


def test_what_the_log_holds_is_not_promised_again() -> None:
    before, after = grants(), grants()
    entries = [SlotGranted(member=name, key=OURS, token=f"{0:032x}") for name in take(before, ask(2))]
    for entry in entries:
        after.add(entry, 0.0)
    assert after.told(ask(2), OURS) == [entry.member for entry in entries], "the same question, the same answer"
    assert not after.told(ask(2), THEIRS)
    (third,) = take(after, ask(1, 1))
    assert third not in [entry.member for entry in entries]


@pytest.mark.parametrize(("workers", "key"), [(3, OURS), (4, OURS), (1, THEIRS), (2, THEIRS)])
def test_a_key_is_good_for_so_many(workers: int, key: str) -> None:
    good = workers <= (3 if key == OURS else 1)
    refusal = grants().refusal(ask(workers), key)
    assert good == (not refusal)
    if not good:
        assert f"{workers} more want in" in refusal


def test_all_keys_together_are_good_for_so_many_as_the_run_takes() -> None:
    here = SlotGrants(JoinPolicy(BRIEF, VERSIONS, {OURS.encode(): 3, THEIRS.encode(): 3}, first=2, most=4), {})
    take(here, ask(3))
    assert "the run takes 4 (--max-workers)" in here.refusal(ask(2, 1), THEIRS)
    assert not here.refusal(ask(1, 1), THEIRS)


def test_those_that_are_promised_count_and_those_that_are_lost_do_not() -> None:
    lost: dict[str, str] = {}
    here = grants(lost)
    names = take(here, ask(3))
    assert "3 workers are here under this key" in here.refusal(ask(1, 1), OURS)
    assert here.may_soon(ask(1, 1), OURS), "some may be lost, and nobody knows it yet"
    assert not here.may_soon(ask(4, 1), OURS), "too many whoever is lost"
    lost[names[0]] = "silent"
    assert not here.refusal(ask(1, 1), OURS)


def test_whoever_lost_a_worker_gets_its_slot_back_under_another_id() -> None:
    lost: dict[str, str] = {}
    here = grants(lost)
    first, second = take(here, ask(2))
    again = ask(1, 1, slot=slot_of(second))
    assert here.replaced(again, OURS) == [second]
    assert not here.replaced(again, THEIRS), "only under its own key"
    lost[second] = "its launcher lost it"
    (third,) = take(here, again)
    assert slot_of(third) == slot_of(second) != slot_of(first)
    assert third != second


def test_whoever_does_not_come_loses_the_place() -> None:
    here = grants()
    first, second = take(here, ask(2))
    assert not here.late({first}, PATIENCE)
    assert here.late({first}, PATIENCE + 1) == [second]


def test_a_machine_that_begins_again_does_not_wait_for_those_that_never_came() -> None:
    here = grants()
    first, second = take(here, ask(2))
    again = ask(2, 1)
    assert not here.abandoned(again, OURS, {first}, RETRY), "they may be on their way"
    assert here.abandoned(again, OURS, {first}, RETRY + 1) == [second]
    assert not here.abandoned(ask(1, 1), OURS, {first}, RETRY + 1), "there is room for one more"
    assert not here.abandoned(ask(2), OURS, {first}, RETRY + 1), "the same question"
    assert not here.abandoned(again, THEIRS, {first}, RETRY + 1), "only under its own key"


def test_an_id_is_its_keys_alone_and_a_guest_says_that_it_is_one() -> None:
    here = grants()
    (name,) = take(here, ask())
    guest, own = MemberInfo(remote=True), MemberInfo()
    assert not here.objection(JoinRequest(member=name, info=guest), OURS)
    assert "not given to this key" in here.objection(JoinRequest(member=name, info=guest), THEIRS)
    assert "not given to this key" in here.objection(JoinRequest(member=name, info=own), OURS), (
        "it would become worker 0"
    )
    assert "not given to this key" in here.objection(JoinRequest(member="w0.1000000", info=guest), OURS)
    assert not here.objection(JoinRequest(member="w0.1000000", info=own), "c" * 40)
    assert "another machine" in here.objection(JoinRequest(member=name, info=guest), "c" * 40)
    assert not here.objection(Heartbeat(member=name, generation=0, promised=0, applied=0), THEIRS), (
        "the register judges those"
    )


def test_a_run_that_does_not_listen_has_no_slots() -> None:
    assert "--listen" in SlotGrants(None, {}).refusal(ask(), OURS)


@pytest.mark.parametrize(
    ("there", "names"),
    [
        ({"shoal": "0.3.9", "torch": "2.13.2"}, ()),
        ({"shoal": "0.4.0", "torch": "2.13.0"}, ("shoal 0.3.1", "0.4.0")),
        ({"shoal": "0.3.1", "torch": "2.12.1+cu126"}, ("torch 2.13.0+cpu", "2.12.1+cu126")),
        ({"shoal": "0.3.1"}, ("torch 2.13.0+cpu", "none")),
    ],
)
def test_n13_versions_that_matter_are_named(there: dict[str, str], names: tuple[str, ...]) -> None:
    said = find_version_mismatch(VERSIONS, there)
    assert bool(said) == bool(names)
    assert all(name in said for name in names)


def test_one_key_cannot_make_the_log_grow_by_joining_and_leaving() -> None:
    lost: dict[str, str] = {}
    here, moment, most = grants(lost, most=2), 0.0, 2 * GRANTS
    for token in range(most // 2):
        assert not here.too_often(ask(2, token), OURS, moment)
        lost |= {granted.member: "left" for granted in here.choose(ask(2, token), OURS, moment)}
        moment += 1.0
    assert f"joined {most} times in an hour" in here.too_often(ask(1, 999), OURS, moment)
    assert not here.too_often(ask(1, 999), THEIRS, moment), "another key has its own measure"
    assert not here.too_often(RunQuery(workers=1, token="f" * 32, versions=VERSIONS, look=True), OURS, moment)
    assert not here.too_often(ask(2, 1000), OURS, PERIOD + 0.5), "the first two are an hour ago"


def test_a_coordinator_that_begins_again_holds_nothing_against_a_key() -> None:
    here = grants({}, most=1)
    for number in range(2 * GRANTS):
        here.add(SlotGranted(member=f"w2.{number}", key=OURS, token=f"{number:032x}"), 0.0)
    assert not here.too_often(ask(1, 999), OURS, 0.0)
