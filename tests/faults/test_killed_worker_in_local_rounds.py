"""P1 under `local(…)`: a worker is killed in the middle of a round. It loses its steps since the round, nobody else."""

from functools import partial
from pathlib import Path

import pytest
from forked import Forked, soon
from test_killed_or_frozen_worker import WAIT, complete, disturbed

pytestmark = pytest.mark.timeout(300)

KILLED = """if run.worker_id == SLOT and run.step == 9 and not os.path.exists('killed'):
            open('killed.part', 'w').write(str(os.getpid()))
            os.rename('killed.part', 'killed')
            os.kill(os.getpid(), 9)
        time.sleep(0.0 if os.path.exists('go') else 0.1 if run.step < 40 else 1.0)"""
"""In the second round of six steps. Later steps are slow until the newcomer is there, however long it takes."""


def replaced(folder: Path, slot: int, _running: Forked) -> None:
    assert soon(WAIT, (folder / "killed").exists), "the worker has not come to its step"
    complete(slot, int((folder / "killed").read_text()))


@pytest.mark.parametrize(
    ("slot", "plan"),
    [
        pytest.param(1, "local(6, diloco)", id="a worker"),
        pytest.param(0, "local(6, bmuf), lowrank(1)", id="worker 0", marks=pytest.mark.soak),
        pytest.param(1, "local(6, sma)", id="a replica of its own", marks=pytest.mark.soak),
        pytest.param(1, "local(6, diloco, overlap=true)", id="a round under way"),
        pytest.param(1, "allreduce, stale(2)", id="delayed means"),
        pytest.param(0, "allreduce, stale(1), int8", id="worker 0 and delayed means", marks=pytest.mark.soak),
        pytest.param(1, "mix(butterfly, steps=6)", id="between meetings"),
        pytest.param(1, "datagrams(steps=6)", id="with datagrams"),
        pytest.param(
            0, "local(6, overlap=true, fragments=2), int8", id="worker 0 and fragments", marks=pytest.mark.soak
        ),
    ],
)
def test_p1_killed_in_a_round_and_replaced(tmp_path: Path, slot: int, plan: str) -> None:
    """Its samples since the last round are dealt again; the newcomer enters at the end of one, with the outer state."""
    each = KILLED.replace("SLOT", str(slot))
    err = disturbed(tmp_path, partial(replaced, tmp_path, slot), "--plan", plan, each=each, lockstep=False)
    assert f"worker {slot} was lost (SIGKILL)" in err


@pytest.mark.parametrize(
    ("slot", "plan"),
    [
        pytest.param(1, "local(6, samples=leased)", id="a worker"),
        pytest.param(1, "local(6, samples=leased, end=fastest)", id="rounds end with the fastest"),
        pytest.param(0, "local(6, diloco, samples=leased)", id="worker 0", marks=pytest.mark.soak),
    ],
)
def test_p1_killed_while_it_leases_samples(tmp_path: Path, slot: int, plan: str) -> None:
    """What it was given and no round has counted is leased to others; the newcomer leases too."""
    each = KILLED.replace("SLOT", str(slot))
    act = partial(replaced, tmp_path, slot)
    edit = lambda text: text.replace("scheduler.step()", "pass")  # noqa: E731
    err = disturbed(tmp_path, act, "--plan", plan, each=each, edit=edit, lockstep=False)
    assert f"worker {slot} was lost (SIGKILL)" in err
