"""What `shoal plan explain PLAN --workers N` says of bytes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.plan import app
from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement, LinkMeasurement, SpeedMeasurement, as_toml
from shoal.plan.plan import Plan
from shoal.plan.traffic import traffic
from shoal.sync.engine.algorithms.butterfly import ButterflyAllReduce
from shoal.sync.engine.algorithms.tree import ChainAllReduce, StarAllReduce, TreeAllReduce

shoal = CliRunner()


def found(plan: str, workers: int, parameters: int = 4_000_000):  # type: ignore[no-untyped-def]
    return traffic(Plan.parse(plan), workers, parameters)


@pytest.mark.parametrize(
    ("plan", "workers", "meets", "share"),
    [
        ("bsp", 4, "sum", 1.0),
        ("fp16", 4, "sum", 0.5),
        ("lowrank(2)", 4, "sum", 0.005),
        ("onebit", 2, "gather", 1 / 28),
        ("onebit", 8, "twostage", 1 / 28),
        ("onebit, meet(gather)", 8, "gather", 4 / 28),
        ("int8", 4, "twostage", 0.26),
        ("topk(0.01)", 8, "gather", 0.08),
        ("dgc", 4, "gather", 0.004),
    ],
)
def test_bytes_against_no_codec(plan: str, workers: int, meets: str, share: float) -> None:
    said = found(plan, workers)
    assert said.meets == meets
    assert said.plain == 2 * (workers - 1) * 16_000_000 // workers
    assert 0.5 * share <= said.sent / said.plain <= share
    assert f"{said.sent:,} bytes" in str(said)


def test_straight_sends_everything_to_everybody() -> None:
    assert found("allreduce(straight)", 4).sent == 3 * 16_000_000
    assert found("allreduce(ring)", 4).sent == found("bsp", 4).sent


@pytest.mark.parametrize(
    ("workers", "tree", "butterfly", "chain"), [(2, 1, 1, 1), (3, 2, 2, 2), (4, 2, 2, 2), (5, 3, 3, 2), (8, 3, 3, 2)]
)
def test_topologies_send_whole_gradients(workers: int, tree: int, butterfly: int, chain: int) -> None:
    """By the worker that sends most, as the algorithms count themselves."""
    for by, times, kind in (
        ("tree", tree, TreeAllReduce),
        ("butterfly", butterfly, ButterflyAllReduce),
        ("chain", chain, ChainAllReduce),
        ("star", workers - 1, StarAllReduce),
    ):
        assert found(f"allreduce({by})", workers).sent == times * 16_000_000
        assert max(kind.sent_bytes(1, workers, place) for place in range(workers)) == times


def test_a_plan_says_its_work_and_depth() -> None:
    """By the arithmetic that tests/sync/test_sum_cost.py holds against what the algorithms do."""
    tree = found("allreduce(tree)", 8)
    assert (tree.depth, tree.added) == (6, 8_000_000)
    assert "; 6 messages wait for one another, and a worker adds at most 8,000,000 numbers" in str(tree)
    assert (found("bsp", 4).depth, found("bsp", 4).added) == (6, 3_000_000)
    assert (found("fp16", 4).depth, found("topk(0.01)", 4).depth, found("int8", 4).depth) == (2, 1, 2)
    assert found("server, stale(3)", 4).depth == 2
    assert "wait" not in str(found("alone", 4))


def test_one_worker_and_alone_send_nothing() -> None:
    assert found("onebit", 1).sent == found("alone", 4).sent == 0


def test_more_than_is_possible_is_refused() -> None:
    with pytest.raises(UsageError, match="--workers 0: workers must be"):
        found("bsp", 0)
    with pytest.raises(UsageError, match="--parameters -1"):
        found("bsp", 2, -1)


def test_the_command_says_it_to_people_and_to_scripts() -> None:
    words = ["explain", "onebit", "--workers", "4", "--parameters", "2000000"]
    text = " ".join(shoal.invoke(app, words).stdout.split())
    assert "between 4 hosts, 2,000,000 parameters: payloads meet in two stages; a worker sends at most" in text
    told = json.loads(shoal.invoke(app, [*words, "--json"]).stdout)["traffic"]
    assert told["meets"] == "twostage"
    assert told["staged"] == told["sent"] < told["gathered"] < told["plain"]
    refused = shoal.invoke(app, ["explain", "onebit", "--workers", "0"])
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1


def measured(tmp_path: Path, rate: float = 20.0, rtt: float = 30.0) -> str:
    """A cluster of three workers, one of whose links is slow and another far."""
    links = [LinkMeasurement(a, b, 1.0, 900.0) for a in range(3) for b in range(3) if a != b]
    links[0], links[5] = LinkMeasurement(0, 1, 1.0, rate), LinkMeasurement(2, 1, rtt, 900.0)
    file = tmp_path / "cluster.toml"
    file.write_text(
        as_toml(
            ClusterMeasurement([SpeedMeasurement(rank, "host", f"10.0.0.{rank}", 80.0, 2) for rank in range(3)], links)
        )
    )
    return str(file)


def test_a_measured_cluster_says_how_long_transfers_take(tmp_path: Path) -> None:
    """Bytes at the slowest rate and latencies of the longest round trip: four round a ring of three, one gathered."""
    words = ["--cluster", measured(tmp_path), "--parameters", "3000000", "--json"]
    told = [shoal.invoke(app, ["explain", plan, *words]).stdout for plan in ("bsp", "topk(0.01)")]
    plain, topk = (json.loads(text)["traffic"] for text in told)
    assert plain["workers"] == topk["workers"] == 3
    assert plain["seconds"] == plain["plain_seconds"] == pytest.approx(16_000_000 / 2.5e6 + 4 * 0.015)
    assert topk["seconds"] == pytest.approx(topk["sent"] / 2.5e6 + 0.015)
    assert topk["plain_seconds"] == plain["seconds"]


def test_it_is_said_to_people_and_a_contradiction_refused(tmp_path: Path) -> None:
    words = ["explain", "topk(0.01)", "--cluster", measured(tmp_path)]
    text = " ".join(shoal.invoke(app, words).stdout.split())
    assert "over its slowest link, 20 Mbit/s with a round trip of 30 ms, that takes about" in text
    assert "without a codec 2,193.3 ms" in text
    refused = shoal.invoke(app, [*words, "--workers", "4"])
    assert (refused.exit_code, refused.stderr) == (2, "shoal: --workers 4: the cluster has 3; leave --workers out\n")
