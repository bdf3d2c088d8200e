"""Slow hosts: a quota where it can be had, else sleep in proportion."""

import time
from pathlib import Path

import pytest

from shoal.core.clock import Deadline
from shoal.lab.inside import Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.load import parse_lab
from shoal.lab.speed import CpuQuota, how, limit, place, rest


def test_rest_makes_up_the_difference() -> None:
    assert rest(2.0, 0.25) == 6.0
    assert rest(2.0, 1.0) == 0.0


def test_what_is_used_is_said() -> None:
    assert how(None, 1.0) == "full speed"
    assert how(None, 0.5) == "sleep in proportion"
    assert how(CpuQuota(Path("x"), 0.25, 2), 0.25) == "cgroup v2 quota of 0.25 cores"


def test_where_no_group_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert limit(tmp_path / "missing" / "group", 2, 0.5, 1) is None


def busy(say: Say) -> None:
    """Share of a core that an endless loop gets."""
    begun, used, deadline = time.perf_counter(), time.process_time(), Deadline.after(1.0)
    while not deadline.expired:
        pass
    say((time.process_time() - used) / (time.perf_counter() - begun))


def test_a_quota_holds_back_whatever_runs_in_the_host(possible: None) -> None:
    if place("shoal-probe") is None:
        pytest.skip("no control group with the cpu controller can be made here")
    with NetworkLab(parse_lab("hosts = 2\n[host.1]\nspeed = 0.2"), cores=1) as lab:
        assert lab.quota(0) is None
        assert lab.quota(1) is not None
        with inside(lab, 1, busy) as child:
            assert child.hear() < 0.3  # a busy machine gives it less, never more
