"""What registering costs a run."""

import json
from pathlib import Path

import forked
import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.mark.soak
def test_registering_takes_less_than_two_percent_of_a_run(tmp_path: Path) -> None:
    words = ["run", "--name", "one", "--workers", "2", str(DIGITS), "--epochs", "20"]
    done = forked.command(tmp_path, *words, SHOAL_REGISTER="1", SHOAL_RUNS=str(tmp_path / "runs")).wait(110)
    assert done.code == 0, done.err
    registering = json.loads((tmp_path / "runs/one/model.json").read_text())["seconds"]
    training = json.loads((tmp_path / "runs/one/summary.json").read_text())["seconds"]
    assert registering <= 0.02 * training, (registering, training)
