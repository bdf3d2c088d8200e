"""Servers between hosts, in network namespaces: P1, N1, N3 and N5 for plans with parameter servers."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from forked import Forked
from scripts import given_up
from test_network_members_change import HOSTS, after, pid, train, whole

from shoal.lab.needs import missing

pytestmark = [pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"), pytest.mark.timeout(300)]

EVERY_STEP, STALE = "server(shards=2)", "server(shards=2), stale(2, round=6)"
PLANS = pytest.mark.parametrize("plan", [EVERY_STEP, STALE], ids=["every step", "stale"])


@pytest.mark.parametrize(
    "plan", [EVERY_STEP, pytest.param(STALE, marks=pytest.mark.soak("network"))], ids=["every step", "stale"]
)
def test_p1_a_worker_killed_between_hosts_is_replaced(tmp_path: Path, plan: str) -> None:
    """Its host has a server too, which lives on."""

    def kill(running: Forked) -> None:
        os.kill(pid(tmp_path, 1), signal.SIGKILL)
        whole(tmp_path, running)

    err = train(tmp_path, "", kill, "--plan", plan, rates=plan == EVERY_STEP)
    assert "shoal: worker 1 was lost (SIGKILL)" in err
    assert given_up(tmp_path) == ["w1.1000000"]


@pytest.mark.soak("network")
@PLANS
def test_n1_the_side_with_the_servers_goes_on_and_the_other_comes_back(tmp_path: Path, plan: str) -> None:
    """Where workers wait only for the bound, they need not have made the same number of steps."""
    lab = "[[event]]\nat = 'step 8'\npartition = [[0, 1], [2]]\n[[event]]\nat = 'step 24'\nheal = true\n"
    err = train(tmp_path, lab, partial(whole, tmp_path), "--plan", plan, rates=plan == EVERY_STEP)
    assert err.count("was lost") == err.count("worker 2 was lost") == 1
    assert given_up(tmp_path) == ["w2.1000000"]


@pytest.mark.soak("network")
@PLANS
def test_n3_servers_hear_of_members_without_the_coordinator(tmp_path: Path, plan: str) -> None:
    lab = f"[[event]]\nat = 'step 8'\ncut = [{HOSTS}]\n[[event]]\nat = 'step 40'\nrestore = [{HOSTS}]\n"
    assert "was lost" not in train(tmp_path, lab, lambda _: after(tmp_path, 42), "--plan", plan)
    assert given_up(tmp_path) == []


RATES = (("8", "10mbit"), ("14", "2mbit"), ("20", "1mbit"))


@pytest.mark.soak("network")
@PLANS
def test_n5_a_slow_link_to_a_server_is_waited_for(tmp_path: Path, plan: str) -> None:
    """The link of a host with a worker and a server becomes slower and slower."""
    lab = "".join(f"[[event]]\nat = 'step {step}'\nhost = [1]\nrate = '{rate}'\n" for step, rate in RATES)
    act = lambda _: after(tmp_path, 26)  # noqa: E731
    assert "was lost" not in train(tmp_path, lab, act, "--plan", plan, samples=90, load=20_000)
    assert given_up(tmp_path) == []
