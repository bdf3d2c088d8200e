"""N3 on one host: the coordinator stands still. Training goes on for the lease, then waits; nobody is given up."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from forked import Forked, soon
from scripts import given_up
from test_killed_or_frozen_worker import WAIT, coordinator, disturbed, doing

from shoal.launch import supervisor
from shoal.membership.failure_detector import MembershipRules

pytestmark = pytest.mark.timeout(300)


def freeze(seconds: float) -> None:
    """The coordinator stands still for so long, while the workers train."""
    frozen, there = coordinator(), doing()[0].step
    os.kill(frozen, signal.SIGSTOP)
    time.sleep(seconds)
    assert soon(WAIT, lambda: doing()[0].step > there + 5), "training waits for the coordinator"
    os.kill(frozen, signal.SIGCONT)


@pytest.mark.soak
def test_n3_training_goes_on_without_the_coordinator(tmp_path: Path) -> None:
    """Longer than a worker may be silent, so that the coordinator wakes up to members it has not heard."""
    assert "was lost" not in disturbed(tmp_path, lambda _: freeze(4.0))
    assert given_up(tmp_path) == []


def short_lease() -> None:
    supervisor.Rules = partial(MembershipRules, lease=1.0)  # type: ignore[misc, assignment]


@pytest.mark.soak
def test_n3_when_the_lease_is_over_all_wait_and_then_go_on(tmp_path: Path) -> None:
    def outlast(_running: Forked) -> None:
        frozen = coordinator()
        os.kill(frozen, signal.SIGSTOP)
        seen: list[int] = []

        def waits() -> bool:
            seen.append(max(worker.step for worker in doing()))
            time.sleep(0.5)
            return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

        assert soon(WAIT, waits), "they complete steps though their lease is over"
        os.kill(frozen, signal.SIGCONT)

    assert "was lost" not in disturbed(tmp_path, outlast, inject=short_lease)
