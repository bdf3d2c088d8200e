"""What the page's server costs with 64 workers and 10⁵ steps: wants a quiet machine and 3 GB of disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "page.py"


@pytest.mark.soak("page")
@pytest.mark.timeout(1800)
def test_a_large_run_costs_a_tenth_of_a_core_and_150_mb() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["first_answer_seconds"] <= 1.0
    assert found["core_share"] < 0.10
    assert found["memory_mb"] < 150
