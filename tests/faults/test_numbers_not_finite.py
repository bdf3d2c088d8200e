"""S8: numbers that are not finite; O1: replicas that differ."""

import json
import math
from pathlib import Path

import pytest
from scripts import assert_exactly_once, script, shoal

POISON = "x[17] = float('nan')"


def events(folder: Path, kind: str, rank: int = 0) -> list[dict]:
    lines = (folder / f"runs/one/worker-{rank}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.soak) for workers in (1, 2))])
def test_s8_a_poisoned_sample_is_skipped_by_all_and_named(tmp_path: Path, workers: int) -> None:
    skipped_and_named(tmp_path, workers, "allreduce")


CODED = ["onebit, by_size(0)", "dgc(0.1), by_size(0)", "lowrank(1)", "int8, by_size(0), meet(twostage)"]


@pytest.mark.parametrize("plan", [CODED[0], *(pytest.param(plan, marks=pytest.mark.soak) for plan in CODED[1:])])
def test_s8_the_same_under_a_codec(tmp_path: Path, plan: str) -> None:
    """No codec carries such numbers: the others are told that there were some."""
    skipped_and_named(tmp_path, 3, plan)


def skipped_and_named(tmp_path: Path, workers: int, plan: str) -> None:
    script(tmp_path, samples=50, batch=4, epochs=2)
    text = (tmp_path / "script.py").read_text()
    (tmp_path / "script.py").write_text(text.replace("data = Tensor", f"{POISON}\ndata = Tensor"))
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", str(workers), "--plan", plan, "script.py")
    assert outcome.code == 0, outcome.err
    assert all(math.isfinite(float(word)) for word in outcome.checksum.split()[1:])
    skipped = events(tmp_path, "skipped")
    assert len(skipped) == 2  # once an epoch
    for event in skipped:
        (guilty,) = event["workers"]
        assert "17" in event["samples"]
        assert len(event["places"]) <= 4
        seen = [line.split() for line in (tmp_path / f"seen-{guilty}.txt").read_text().splitlines()]
        assert any(int(step) == event["step"] and "17" in ids for _, step, _, *ids in seen)
    assert outcome.err.count("skipped: gradients of worker") == 2
    assert_exactly_once(tmp_path, "one", 50, 2)


def poisoned(folder: Path, who: str, **options: int) -> None:
    """From step 2 on, what these workers compute is not finite."""
    script(folder, **options)
    text = (folder / "script.py").read_text()
    poison = f"if {who} and run.step >= 2: inputs = inputs * float('inf')\n        loss = ((model"
    (folder / "script.py").write_text(text.replace("loss = ((model", poison, 1))


@pytest.mark.parametrize("slot", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_s8_three_in_a_row_quarantine_the_worker_and_the_rest_goes_on(tmp_path: Path, slot: int) -> None:
    poisoned(tmp_path, f"run.worker_id == {slot}", samples=96, batch=2)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "3", "--json", "script.py")
    assert outcome.code == 0, outcome.err
    assert f"worker {slot} was lost (not finite) in step 4; the others go on, and it is quarantined" in outcome.err
    assert f"shoal: 1 loss on the way; worker {slot} is quarantined (not finite)" in outcome.err
    assert outcome.json["quarantined"] == {str(slot): "not finite"}
    skipped = [event for rank in range(3) for event in events(tmp_path, "skipped", rank)]
    assert [(event["step"], event["workers"]) for event in skipped] == [(2, [slot]), (3, [slot]), (4, [slot])]
    assert all(math.isfinite(float(word)) for word in outcome.checksum.split()[1:])
    assert len(events(tmp_path, "started", slot)) == 1, "it was started again"
    assert_exactly_once(tmp_path, "one", 96, 2)


def test_s8_when_all_compute_nonsense_the_run_ends(tmp_path: Path) -> None:
    poisoned(tmp_path, "True", samples=64)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    assert outcome.code == 1
    assert "gradients were not finite in 3 steps in a row" in outcome.err
    assert "quarantined" not in outcome.err


@pytest.mark.soak
def test_s8_too_few_are_left_without_it(tmp_path: Path) -> None:
    poisoned(tmp_path, "run.rank == 1", samples=64)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "--min-workers", "2", "script.py")
    assert outcome.code == 1
    assert "worker 1 failed: shoal.core.errors.Quarantined: worker 1's gradients were not finite" in outcome.err


def test_s8_three_in_a_row_end_a_run_that_needs_everybody(tmp_path: Path) -> None:
    poisoned(tmp_path, "run.rank == 1", samples=64)
    words = ("--workers", "2", "--restarts", "0", "--min-workers", "2")
    outcome = shoal(tmp_path, "run", "--name", "one", *words, "script.py")
    assert outcome.code == 1
    assert (
        "worker 1 failed: shoal.core.errors.DivergedError: worker 1's gradients were not finite in 3 steps"
        in outcome.err
    )
    told = [event for rank in range(2) for event in events(tmp_path, "skipped", rank)]  # the last one by whoever ends
    assert {(event["step"], *event["workers"]) for event in told} == {(2, 1), (3, 1), (4, 1)}


def test_s8_a_grad_scaler_is_left_alone(tmp_path: Path) -> None:
    script(tmp_path, samples=64)
    text = (tmp_path / "script.py").read_text()
    text = text.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer); scaler.update()"
    )
    text = text.replace(
        "for epoch in",
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**127, growth_interval=1000)\nfor epoch in",
        1,
    )
    (tmp_path / "script.py").write_text(text)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    assert outcome.code == 0, outcome.err
    assert events(tmp_path, "skipped") == []


@pytest.mark.parametrize(("workers", "told"), [(2, "worker 1 and worker 0 hold"), (3, "so worker 1 has gone astray")])
def test_o1_replicas_that_differ_end_the_run_with_names(tmp_path: Path, workers: int, told: str) -> None:
    each = "\n        if run.rank == 1 and run.step == 3: model[0].weight.data[0, 0] += 1e-3"
    script(tmp_path, samples=64, each=f"pass{each}")
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", str(workers), "script.py")
    assert outcome.code == 1
    assert "DivergedError: after step" in outcome.err
    assert told in outcome.err


def test_o1_under_the_plan_alone_replicas_may_differ(tmp_path: Path) -> None:
    script(tmp_path, samples=64)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "--plan", "alone", "script.py")
    assert outcome.code == 0, outcome.err
