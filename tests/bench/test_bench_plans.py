"""Where one plan ends and the next begins."""

import pytest

from shoal.bench.contestant import PEER_NAMES, BenchContestant, TrialOrder, contestants
from shoal.bench.peers.table import PEERS
from shoal.bench.plans import split_plans
from shoal.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "plans"),
    [
        ("allreduce", ["allreduce"]),
        ("allreduce,alone", ["allreduce", "alone"]),
        ("allreduce, every(1), alone", ["allreduce, every(1)", "alone"]),
        ("every(1), alone; allreduce;", ["every(1), alone", "allreduce"]),
        ("every(steps=1), every(1)", ["every(steps=1)", "every(1)"]),
        ("bsp,horovod", ["bsp", "horovod"]),
        ("allreduce,bsp,plan.toml,alone", ["allreduce", "bsp", "plan.toml", "alone"]),
        ("allreduce, odd(1,2), alone", ["allreduce, odd(1,2)", "alone"]),
    ],
)
def test_plans_in_one_text(text: str, plans: list[str]) -> None:
    assert split_plans([text]) == plans


def test_the_option_may_be_repeated() -> None:
    assert split_plans(["allreduce; alone", "bsp"]) == ["allreduce", "alone", "bsp"]


def test_contestants_are_plans_and_peers() -> None:
    found = contestants(["alone"], "ddp, ddp-fp16", [1, 2])
    assert found == [
        BenchContestant("alone, every(1)"),
        BenchContestant("ddp", True),
        BenchContestant("ddp-fp16", True),
    ]
    assert set(PEER_NAMES) == set(PEERS)


@pytest.mark.parametrize(
    ("plans", "peers", "why"),
    [
        ([], "", "no contestants"),
        (["alone", "alone,every(1)"], "", "twice"),
        ([], "dpd", "did you mean 'ddp'"),
        (["x"], "", "x"),
    ],
)
def test_what_cannot_run_is_refused(plans: list[str], peers: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        contestants(plans, peers, [2])


def test_all_contestants_are_in_the_same_lab(tmp_path) -> None:  # type: ignore[no-untyped-def]
    order = TrialOrder(script="s.py", arguments=("-x",), workers=2, seed=3, runs=tmp_path, name="one", lab="2 hosts")
    plan, peer = BenchContestant("alone").command(order), BenchContestant("ddp", True).command(order)
    assert plan[2:8] == ["shoal", "run", "--plan", "alone", "--lab", "2 hosts"]
    assert peer[2:6] == ["shoal.bench.peer", "ddp", "--lab", "2 hosts"]
    assert plan[-2:] == peer[-2:] == ["s.py", "-x"]
