"""P1, P12 under `shared`: the copy outlives a killed worker, and a checkpoint holds it."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from scripts import assert_exactly_once, resumed_at, script, shoal
from test_killed_or_frozen_worker import EPOCHS, SAMPLES, disturbed
from test_killed_worker_in_local_rounds import KILLED, replaced
from test_resume_after_kill import HOLD, kill_after_checkpoints, step_in

from shoal.train.checkpoint.manifest import listed

pytestmark = pytest.mark.timeout(300)


def seen(folder: Path) -> Counter[tuple[str, str]]:
    """How often a step on each sample was made, by what the scripts themselves noted: (epoch, sample)."""
    lines = [line.split() for path in folder.glob("seen-*.txt") for line in path.read_text().splitlines()]
    return Counter((epoch, sample) for _, _, epoch, *samples in lines for sample in samples)


@pytest.mark.parametrize(
    ("slot", "plan"),
    [
        pytest.param(1, "shared(steps=6)", id="a worker"),
        pytest.param(0, "shared(steps=6)", id="worker 0", marks=pytest.mark.soak),
        pytest.param(0, "shared(steps=6, clusters=2)", id="the cluster that had the token first"),
        pytest.param(2, "shared(steps=6, clusters=2)", id="all of a cluster", marks=pytest.mark.soak),
        pytest.param(1, "shared, local(6, diloco)", id="averages", marks=pytest.mark.soak),
        pytest.param(1, "shared, local(6, samples=leased)", id="leased samples"),
    ],
)
def test_p1_killed_between_two_steps_and_replaced(tmp_path: Path, slot: int, plan: str) -> None:
    """Its steps since the meeting are in the copy: their samples count, and are not trained on again."""
    each = KILLED.replace("SLOT", str(slot))
    edit = lambda text: text.replace("scheduler.step()", "pass")  # noqa: E731  (workers make different numbers of steps)
    act = partial(replaced, tmp_path, slot)
    err = disturbed(tmp_path, act, "--plan", plan, each=each, edit=edit, lockstep=False)
    assert f"worker {slot} was lost (SIGKILL)" in err
    made = seen(tmp_path)
    assert len(made) == EPOCHS * SAMPLES
    assert set(made.values()) == {1}


def test_p12_a_killed_run_goes_on_from_a_meeting(tmp_path: Path) -> None:
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, "--workers", "2", "--plan", "shared(steps=4)", "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0]
    assert step_in(kept.name) % 4 == 0, "a checkpoint is taken when all meet"
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert resumed_at(again, tmp_path) == step_in(kept.name)
    assert_exactly_once(tmp_path, "one", 96, 2)
