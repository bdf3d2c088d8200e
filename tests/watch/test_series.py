"""A logged scalar over the steps."""

from pathlib import Path

from fake_runs import logged, make_run, started

from shoal.watch.series import main_scalar, mean_over_workers


def test_the_mean_is_over_the_workers_that_logged_the_step(tmp_path: Path) -> None:
    record = make_run(tmp_path, [logged(2, loss=1.0), logged(1, loss=4.0)], [logged(1, loss=2.0), logged(3, lr=1.0)])
    assert mean_over_workers(record, "loss") == [(1, 3.0), (2, 1.0)]


def test_loss_is_preferred_to_what_was_logged_first(tmp_path: Path) -> None:
    record = make_run(tmp_path, [logged(1, lr=0.1), logged(2, lr=0.1)], [logged(1, loss=2.0)])
    assert main_scalar(record) == "loss"


def test_else_the_first_logged_one(tmp_path: Path) -> None:
    assert main_scalar(make_run(tmp_path, [logged(1), logged(2, lr=0.1, error=1.0)])) == "lr"
    assert main_scalar(make_run(tmp_path, [started()], run="run-b")) is None
