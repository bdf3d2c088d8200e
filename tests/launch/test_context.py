"""What a worker finds in its environment, and what it refuses."""

import pytest

from shoal.core.errors import PeerLost, UsageError
from shoal.groups.base import DEADLINE_SECONDS, SingleWorkerGroup, deadline_seconds
from shoal.launch import torchrun
from shoal.launch.context import find

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in (*TORCHRUN, "LOCAL_WORLD_SIZE", "SHOAL_NAME", "SHOAL_PLAN", "SHOAL_SEED", "SHOAL_DEADLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path))


def test_a_world_of_one(tmp_path) -> None:
    context = find()
    assert isinstance(context.group, SingleWorkerGroup)
    assert context.dir == tmp_path / context.run
    assert (context.plan, context.seed, context.begun) == ("", 0, False)


def test_the_environment_says_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name, text in (("NAME", "mine"), ("PLAN", "alone"), ("SEED", "12")):
        monkeypatch.setenv(f"SHOAL_{name}", text)
    context = find()
    assert (context.run, context.plan, context.seed) == ("mine", "alone", 12)
    assert context.dir == tmp_path / "mine"


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "²"])
def test_a_wrong_seed_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOAL_SEED", text)
    with pytest.raises(UsageError, match=r"SHOAL_SEED=.* is not a seed"):
        find()


def test_a_wrong_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_NAME", "../up")
    with pytest.raises(UsageError, match=r"SHOAL_NAME '../up' is not an id"):
        find()


@pytest.mark.parametrize("text", ["0", "-3", "soon", "nan"])
def test_a_wrong_deadline_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOAL_DEADLINE", text)
    with pytest.raises(UsageError, match=r"SHOAL_DEADLINE=.* is not a number of seconds"):
        deadline_seconds()


def test_the_deadline_is_ten_minutes_or_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline_seconds() == DEADLINE_SECONDS == 600
    monkeypatch.setenv("SHOAL_DEADLINE", "1.5")
    assert deadline_seconds() == 1.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MASTER_PORT": None}, "RANK is set but MASTER_PORT is not"),
        ({"RANK": "one"}, "RANK='one' is not a whole number"),
        ({"RANK": "-1"}, "RANK='-1' is not a whole number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE='' is not a whole number"),
        ({"RANK": "2"}, "RANK=2 does not fit WORLD_SIZE=2"),
    ],
)
def test_a_wrong_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch, changes: dict, said: str) -> None:
    for name, text in (TORCHRUN | changes).items():
        if text is not None:
            monkeypatch.setenv(name, text)
    assert torchrun.present()
    with pytest.raises(UsageError, match=said):
        find()


def test_nobody_at_the_meeting_point_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (TORCHRUN | {"RANK": "1", "SHOAL_DEADLINE": "1"}).items():
        monkeypatch.setenv(name, text)
    with pytest.raises(PeerLost, match=r"the workers do not meet at 127.0.0.1:1"):
        find()
