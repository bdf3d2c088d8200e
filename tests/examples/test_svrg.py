"""Variance-reduced gradients: linear convergence, and a full stage on workers of its own (row 158)."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import forked
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from svrg import LogisticRegression, step_gradient  # noqa: E402

RATE, BATCH, STEPS, ANCHORS = 0.1, 4, 250, 8


def train(reduced: bool) -> list[float]:
    """Return the norm of the whole gradient at every anchor; the same draws with and without variance reduction."""
    model = LogisticRegression(1000, 20, penalty=0.1)
    draws, norms = torch.Generator().manual_seed(5), []
    for _ in range(ANCHORS):
        model.anchor.copy_(model.weights.detach())
        model.full.copy_(model.gradient(model.anchor, slice(None)))
        norms.append(float(model.full.norm()))
        for _ in range(STEPS):
            rows = torch.randint(len(model.signs), (BATCH,), generator=draws)
            weights = model.weights.detach()
            weights -= RATE * (step_gradient(model, rows) if reduced else model.gradient(weights, rows))
    return norms


def test_johnson_zhang_every_anchor_is_nearer_by_a_constant_factor_where_sgd_stands_still():
    reduced, plain = train(True), train(False)
    assert all(after < 0.5 * before for before, after in pairwise(reduced))
    assert reduced[-1] < 1e-5 * reduced[0]
    assert min(plain) > 1e-2 * plain[0]


def test_the_mean_step_is_the_whole_gradient():
    model = LogisticRegression(50, 4, penalty=0.1)
    model.full.copy_(model.gradient(model.anchor, slice(None)))
    with torch.no_grad():
        model.weights += 1
    steps = torch.stack([step_gradient(model, torch.tensor([row])) for row in range(50)])
    torch.testing.assert_close(steps.mean(0), model.gradient(model.weights.detach(), slice(None)))


def anchors(folder: Path, workers: int, full: int) -> list[float]:
    words = ("run", "--workers", str(workers), str(ROOT / "examples/svrg.py"), "--anchors", "3", "--steps", "40")
    done = forked.command(folder, *words, "--step-workers", "1", "--full-workers", str(full)).wait(120)
    assert done.code == 0, done.err
    return [float(found) for found in re.findall(r"anchor \d+: gradient (\S+)", done.out)]


def test_the_full_stage_has_a_number_of_workers_of_its_own(tmp_path: Path):
    """One worker makes the steps; how many take the whole gradient changes nothing."""
    alone, shared = anchors(tmp_path, 1, 1), anchors(tmp_path, 3, 2)
    assert len(alone) == len(shared) == 3
    assert alone == pytest.approx(shared, rel=2e-3)
    assert alone[-1] < alone[0]
