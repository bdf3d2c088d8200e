"""P12 under `local(…)`: a run that is killed goes on from the end of a round, with the same outer momentum."""

import os
from pathlib import Path

import pytest
from scripts import assert_exactly_once, forget, resumed_at, script, shoal
from test_resume_after_kill import HOLD, kill_after_checkpoints, step_in

from shoal.train.checkpoint.manifest import listed
from shoal.train.checkpoint.shard import parse

PLAN = ["--workers", "2", "--plan", "local(4, diloco, state=reset)"]
"""Optimizers begin each round anew, so that all of the state is in a checkpoint."""


def test_p12_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    script(tmp_path)
    whole = shoal(tmp_path, "run", "--name", "whole", *PLAN, "script.py")
    assert whole.code == 0, whole.err
    forget(tmp_path)
    os.rename(tmp_path / "runs" / "whole", tmp_path / "whole")
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, *PLAN, "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0]
    assert step_in(kept.name) % 4 == 0, "a checkpoint is taken at the end of a round"
    momenta = [name for name in parse((kept / "worker-0.safetensors").read_bytes(), "")[0] if ".outer." in name]
    assert len(momenta) == 4
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert resumed_at(again, tmp_path) == step_in(kept.name)
    assert again.checksum == whole.checksum, (whole.err, again.err)
    assert_exactly_once(tmp_path, "one", 96, 2)


def test_p12_means_that_were_pending_are_applied_after_a_resume(tmp_path: Path) -> None:
    """`allreduce, stale(2)`: to the bits of a run that nobody killed, and in which nobody took a checkpoint."""
    plan = ["--workers", "2", "--plan", "allreduce, stale(2)"]
    script(tmp_path)
    whole = shoal(tmp_path, "run", "--name", "whole", *plan, "script.py")
    assert whole.code == 0, whole.err
    forget(tmp_path)
    os.rename(tmp_path / "runs" / "whole", tmp_path / "whole")
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, *plan, "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0]
    pending = [name for name in parse((kept / "worker-0.safetensors").read_bytes(), "")[0] if ".pending." in name]
    assert len(pending) == 2 * 4
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert again.checksum == whole.checksum, (whole.err, again.err)
    assert_exactly_once(tmp_path, "one", 96, 2)


@pytest.mark.soak
def test_p12_replicas_of_their_own_go_on_from_the_centre(tmp_path: Path) -> None:
    """What a checkpoint holds in the middle of a pass is the centre, which all replicas begin anew from."""
    plan = ["--workers", "2", "--plan", "local(4, easgd)"]
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, *plan, "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0]
    assert step_in(kept.name) % 4 == 0, "a checkpoint is taken at the end of a round"
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert resumed_at(again, tmp_path) == step_in(kept.name)
    assert_exactly_once(tmp_path, "one", 96, 2)


def test_p12_leased_samples_go_on_exactly_once(tmp_path: Path) -> None:
    """A checkpoint holds what no round had counted; the run that goes on leases that, with any number of workers."""
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(
        tmp_path, 2, "--workers", "2", "--plan", "local(4, samples=leased)", "--checkpoint", "3steps"
    )
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--workers", "3", "--json")
    assert again.code == 0, again.err
    assert_exactly_once(tmp_path, "one", 96, 2)
