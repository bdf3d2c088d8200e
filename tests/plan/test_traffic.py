"""What `shoal plan explain PLAN --workers N` says of bytes."""

import json

import pytest
from typer.testing import CliRunner

from shoal.cli.plan import app
from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.traffic import traffic

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
