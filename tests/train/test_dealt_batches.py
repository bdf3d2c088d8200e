"""Batches that a script skips on some workers only: nobody hangs, replicas stay equal, the ledger tells the truth."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import pytest
import torch
from by_links import by_keys
from loops import assert_equal, data, loss_of, parameters, sgd
from models import make
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import PayloadError
from shoal.core.ledger import prove, read_ledger
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.batch_report import MOST_POSITIONS, BatchReport, ReportedBatch, read_report

SAMPLES = 32
Skips = Callable[[int, int], bool]
"""Whether the worker of a rank leaves out the batch of an index, the first time it gets it."""


def numbered(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples), *data(samples).tensors)


def world(
    size: int,
    skips: Skips,
    *,
    samples: int = SAMPLES,
    batch: int = 2,
    epochs: int = 2,
    plan: str = "",
    period: int = 1,
    links: bool = False,
) -> list[Result]:
    """Train; who was given what is in `seen`, what of it was trained on in `used`, the ledger's sums in `proof`."""

    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_keys(world)) if links else world
        run, model = world.start(plan), make()
        loader = DataLoader(numbered(samples), batch_size=batch, shuffle=False)
        model, optimizer, steps = run.join(model, sgd(model), loader)
        seen: list[int] = []
        used: list[int] = []
        for epoch in run.epochs(epochs):
            for index, (ids, x, y) in enumerate(steps):
                assert index < 100
                seen += (ids + 1000 * epoch).tolist()
                last = (index + 1) % period == 0
                with nullcontext() if last else run.accumulate():
                    if epoch == 0 and skips(run.rank, index):
                        continue
                    loss_of(model, x, y).backward()
                    used += (ids + 1000 * epoch).tolist()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        run.close()
        proofs = prove(read_ledger(world.dir / "run")) if run.is_main else []
        rows = [[p.samples, p.skipped, p.missing, p.duplicate, int(p.finished)] for p in proofs]
        return parameters(model) | {
            "used": torch.tensor(used),
            "seen": torch.tensor(seen),
            "proof": torch.tensor(rows),
            "steps": torch.tensor(run.step),
            "samples": torch.tensor(run.samples),
        }

    return run_world(size, body, seconds=40)


def check(results: list[Result], samples: int = SAMPLES) -> int:
    """All that must hold whatever was skipped; how many samples were, in epoch 0."""
    for result in results[1:]:
        for name, value in results[0].items():
            if name not in ("used", "seen", "proof", "samples"):
                assert torch.equal(result[name], value), name
    used = [int(i) for result in results for i in result["used"]]
    assert len(set(used)) == len(used), "no sample is used twice"
    skipped = 2 * samples - len(used)
    assert results[0]["proof"].tolist() == [[samples - skipped, skipped, 0, 0, 1], [samples, 0, 0, 0, 1]]
    assert sum(int(result["samples"]) for result in results) == len(used)
    return skipped


@pytest.mark.parametrize("plan", ["", "fp16"])
@pytest.mark.parametrize("size", [2, 3])
def test_one_worker_skips_a_batch(size: int, plan: str) -> None:
    results = world(size, lambda rank, index: rank == 1 and index == 2, samples=12 * size, plan=plan)
    assert check(results, 12 * size) == 2


@pytest.mark.parametrize("plan", ["", "fp16"])
@pytest.mark.parametrize("at", [0, 5], ids=["in the middle", "the last"])
def test_one_worker_skips_a_batch_over_links(plan: str, at: int) -> None:
    results = world(3, lambda rank, index: rank == 1 and index == at, samples=36, plan=plan, links=True)
    assert check(results, 36) == 2


CASES: dict[str, tuple[Skips, int]] = {
    "several in a row": (lambda rank, index: rank == 1 and 1 <= index <= 3, 6),
    "worker 0": (lambda rank, index: rank == 0 and index == 1, 2),
    "the first": (lambda rank, index: rank == 1 and index == 0, 2),
    "the last": (lambda rank, index: rank == 1 and index == 7, 2),
    "the last two": (lambda rank, index: rank == 0 and index >= 6, -1),
    "both, one after the other": (lambda rank, index: index == 2 + 2 * rank, 4),
    "both, overlapping": (lambda rank, index: index in (2 + rank, 3 + rank), 8),
    "every other": (lambda rank, index: rank == 1 and index % 2 == 0, -1),
    "all of an epoch": (lambda rank, index: rank == 1, -1),
}


@pytest.mark.parametrize("case", CASES)
def test_skipping(case: str) -> None:
    skips, expected = CASES[case]
    skipped = check(world(2, skips))
    assert expected in (-1, skipped)


@pytest.mark.parametrize("at", [0, 3, 4], ids=["in the middle", "before the remainder", "the remainder"])
@pytest.mark.parametrize("samples", [33, 37], ids=["a short step", "an uneven step"])
def test_skipping_where_the_last_step_is_uneven(samples: int, at: int) -> None:
    """33 samples of four workers: only worker 0 has one in the last step. 37: two workers have two, three one."""
    check(world(4, lambda rank, index: rank == 0 and index == at, samples=samples), samples)


def test_what_all_skip_alike_is_no_difference() -> None:
    first, second = world(2, lambda rank, index: index == 3)
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("layers"))
    assert int(first["steps"]) == int(second["steps"]) == 15


@pytest.mark.parametrize("at", [0, 1], ids=["the first of a step", "the one that is exchanged"])
def test_accumulation(at: int) -> None:
    """Worker 1 has made one batch more, so the last one is held back for a step that never comes."""
    first, second = world(2, lambda rank, index: rank == 1 and index == at, period=2)
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("layers"))
    samples, skipped, missing, duplicate, _ = first["proof"][0].tolist()
    assert (samples + missing, skipped, duplicate) == (SAMPLES - 2, 2, 0)


def test_the_mean_is_over_those_who_have_a_batch() -> None:
    """Worker 1 skips its part of the last batch: the step is the one of worker 0's part alone."""
    results = world(2, lambda rank, index: rank == 1 and index == 7, epochs=1)
    model = make()
    optimizer = sgd(model)
    parts = [part[:2] if number == 7 else part for number, part in enumerate(in_order())]
    for x, y in [(part[:, :6], part[:, 6:]) for part in parts]:
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in results:
        assert_equal(result, model)


def in_order() -> list[torch.Tensor]:
    x, y = data(SAMPLES).tensors
    return list(torch.cat([x, y], dim=1).split(4))


def test_a_batch_taken_ahead_counts_in_the_others_step() -> None:
    """Nothing was updated between the two: the step is that of one process with these samples."""
    results = world(2, lambda rank, index: rank == 1 and index == 0, epochs=1, samples=12)
    rows = torch.cat(data(12).tensors, dim=1)
    model = make()
    optimizer = sgd(model)
    for part in ([0, 1, 6, 7], [4, 5, 8, 9], [10, 11]):
        loss_of(model, rows[part][:, :6], rows[part][:, 6:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in results:
        assert_equal(result, model)


@pytest.mark.parametrize("ranges", [[(0, MOST_POSITIONS + 1)], [(5, 5)], [(-3, 2)], [(0, 1 << 60)]])
def test_a_report_of_impossible_samples_is_refused(ranges: list[tuple[int, int]]) -> None:
    report = BatchReport(waits=False, batches=[ReportedBatch((0, 0, 0), 0, ranges, 1, True)])
    with pytest.raises(PayloadError):
        read_report(msgspec.json.encode(report))
