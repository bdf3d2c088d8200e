"""What a recorded run tells of computing: its median step without exchanges."""

from pathlib import Path

import pytest
from fake_runs import make_run, started, step

from shoal.core.errors import UsageError
from shoal.plan.server_time import MeasuredComputing
from shoal.watch.computing import forecast_computing, measure_computing


def test_the_median_step_without_what_it_waited_for(tmp_path: Path) -> None:
    slow_first = [step(0, seconds=9.0), *(step(number) for number in range(1, 6))]
    record = make_run(tmp_path, [started(), *slow_first])
    assert measure_computing(record, "run-a") == MeasuredComputing(10, 0.75)
    assert forecast_computing(["run-a"], tmp_path, 10) == 0.75
    assert forecast_computing([], tmp_path, None) is None


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--computing 'run-a': no step of it is in the record"):
        measure_computing(make_run(tmp_path, [started()]), "run-a")
