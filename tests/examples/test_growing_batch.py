"""A job of stages ends at the same loss on any number of workers."""

import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

SCRIPT = Path(__file__).parents[2] / "examples/growing_batch.py"
pytestmark = pytest.mark.timeout(300)


def read_loss(text: str) -> float:
    loss = re.search(r"expected loss ([\d.]+)", text)
    assert loss is not None, text
    return float(loss[1])


def test_stages_on_workers_of_their_own_come_to_the_same_loss(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "60", "--stages", "4x1", "32x1"]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    words = ["run", "--name", "one", "--workers", "1", "--spare", "1", str(SCRIPT), "--steps", "60"]
    done = forked.shoal(tmp_path, *words, "--stages", "4x1", "32x2", "--overhead", "0.02")
    assert done.code == 0, done.err
    assert "worker 1 is added" in done.err
    # a worker may enter between the two looks of a step at how many there are
    assert read_loss(done.out) == pytest.approx(read_loss(alone.stdout), rel=0.02)
