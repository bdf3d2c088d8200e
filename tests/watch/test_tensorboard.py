"""The mirror: what TensorBoard reads is what was recorded, once."""

import importlib.util
import threading
from pathlib import Path

import pytest
from fake_runs import append, ended, logged, make_run, reported, started, step, tear

from shoal.core.errors import UsageError
from shoal.core.merging import merged
from shoal.core.record import worker_file
from shoal.watch.tensorboard import TensorBoardMirror, available, scalars

needs_tensorboard = pytest.mark.skipif(not available(), reason="the extra is not installed")


def read(directory: Path, rank: int) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of one worker: tag -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory / "tensorboard" / f"worker-{rank}")).Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(it.step, pytest.approx(it.value)) for it in found.Scalars(tag)] for tag in tags}


@needs_tensorboard
def test_every_kind_of_scalar_is_mirrored(tmp_path: Path) -> None:
    first = [
        started(),
        step(1, seconds=2.0, wait=0.5),
        logged(1, loss=0.25),
        reported(1, accuracy=0.75),
        ended(),
    ]
    record = make_run(tmp_path, first, [logged(4, lr=0.1)], [])
    threads = threading.active_count()
    mirror = TensorBoardMirror(record.dir)
    mirror.update()
    mirror.close()
    assert threading.active_count() == threads
    scalars = read(record.dir, 0)
    assert scalars["log/loss"] == [(1, 0.25)]
    assert scalars["report/accuracy"] == [(1, 0.75)]
    assert scalars["time/step"] == [(1, 2.0)]
    assert scalars["time/exchange_wait"] == [(1, 0.5)]
    assert scalars["samples_per_second"] == [(1, 5.0)]
    assert read(record.dir, 1) == {"log/lr": [(4, 0.1)]}
    assert read(record.dir, 2) == {}


@needs_tensorboard
def test_updates_add_only_what_is_new_and_wait_for_torn_lines(tmp_path: Path) -> None:
    record = make_run(tmp_path, [logged(1, loss=1.0)])
    mirror = TensorBoardMirror(record.dir)
    mirror.update()
    mirror.update()
    tear(worker_file(record.dir, 0), b'{"event":"logged","at":102.0,"step":2,"valu')
    mirror.update()
    assert read(record.dir, 0) == {"log/loss": [(1, 1.0)]}
    tear(worker_file(record.dir, 0), b'es":{"loss":0.5}}\n')
    append(worker_file(record.dir, 1), [logged(1, loss=3.0)])
    mirror.update()
    assert read(record.dir, 0) == {"log/loss": [(1, 1.0), (2, 0.5)]}
    assert read(record.dir, 1) == {"log/loss": [(1, 3.0)]}
    mirror.close()


@needs_tensorboard
def test_what_does_not_fit_the_time_follows_later(tmp_path: Path) -> None:
    record = make_run(tmp_path, [logged(1, loss=1.0), logged(2, loss=0.5)])
    mirror = TensorBoardMirror(record.dir)
    mirror.update(seconds=0.0)
    assert read(record.dir, 0) == {"log/loss": [(1, 1.0)]}
    mirror.update()
    mirror.close()
    assert read(record.dir, 0) == {"log/loss": [(1, 1.0), (2, 0.5)]}


@needs_tensorboard
def test_a_second_mirror_does_not_double_anything(tmp_path: Path) -> None:
    record = make_run(tmp_path, [logged(1, loss=1.0)])
    for _ in range(2):
        mirror = TensorBoardMirror(record.dir)
        mirror.update()
        mirror.close()
    assert read(record.dir, 0) == {"log/loss": [(1, 1.0)]}


def test_without_the_extra_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not available()
    with pytest.raises(UsageError, match=r"pip install 'shoal\[tensorboard\]'"):
        TensorBoardMirror(tmp_path)


def test_merged_steps_are_drawn_as_one_of_them_would_be() -> None:
    (block,) = merged([step(number) for number in range(16)], 16)
    assert scalars(block) == pytest.approx(scalars(step(0)))
