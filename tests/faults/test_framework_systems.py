"""What frameworks as a whole promise, from the command line: rows 175 and 178 of docs/systems.toml."""

import os
from pathlib import Path

import pytest
from scripts import assert_exactly_once, forget, resumed_at, script, shoal
from test_resume_after_kill import HOLD, kill_after_checkpoints, step_in

from shoal.train.checkpoint.manifest import listed

STRATEGIES = [
    "allreduce",
    "allreduce(tree)",
    "allreduce(star)",
    "local(4, average)",
    "local(4, diloco)",
    "1bit-sgd",
    "powersgd",
    "int8",
    "topk(0.1)",
]
"""Three ways to sum, two ways to agree less often, four things that travel."""


@pytest.mark.soak
def test_tf_distribute_one_script_trains_under_nine_strategies_by_one_string(tmp_path: Path) -> None:
    script(tmp_path, samples=32, epochs=1)
    for number, plan in enumerate(STRATEGIES):
        name = f"strategy-{number}"
        outcome = shoal(tmp_path, "run", "--name", name, "--workers", "2", "--plan", plan, "script.py")
        assert outcome.code == 0, (plan, outcome.err)
        assert_exactly_once(tmp_path, name, 32, 1)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["1bit-sgd", "local(4, bmuf, state=reset)"])
def test_cntk_a_killed_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path, plan: str) -> None:
    """Error feedback and block momentum are part of the checkpoint, or the bits would differ."""
    options = ["--workers", "2", "--plan", plan]
    script(tmp_path)
    whole = shoal(tmp_path, "run", "--name", "whole", *options, "script.py")
    assert whole.code == 0, whole.err
    forget(tmp_path)
    os.rename(tmp_path / "runs" / "whole", tmp_path / "whole")
    script(tmp_path, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, *options, "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0]
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert resumed_at(again, tmp_path) == step_in(kept.name)
    assert again.checksum == whole.checksum, (whole.err, again.err)
    assert_exactly_once(tmp_path, "one", 96, 2)
