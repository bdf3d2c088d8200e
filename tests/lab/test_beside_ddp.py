"""One script over a throttled link, by Shoal's plans and by DDP, in turns."""

from pathlib import Path

import pytest
from forked import command

from shoal.lab.needs import missing

pytestmark = [pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"), pytest.mark.timeout(600)]
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
PLANS = ("int8", "lowrank(4)")


@pytest.mark.soak("clock")
def test_pytorch_the_same_script_is_sooner_at_its_goal_than_with_ddp(tmp_path: Path) -> None:
    """Its module, optimizer and loader are PyTorch's own. To 95 % on digits over 20 Mbit/s, three turns each."""
    words = [str(DIGITS), "--lab", "2 hosts, 20mbit", "--plans", "; ".join(PLANS), "--peers", "ddp", "--repeats", "3"]
    more = ["--until", "accuracy>=0.95", "--out", "report", "--json", "--", "--hidden", "128", "--epochs", "12"]
    outcome = command(tmp_path, "bench", *words, *more).wait(500)
    assert outcome.code == 0, outcome.err
    seconds = {row["contestant"]: row["goal_seconds"]["median"] for row in outcome.json["rows"]}
    print(seconds)  # noqa: T201 (the figures, beside the verdict)
    ddp = seconds.pop("ddp")
    assert len(seconds) == len(PLANS)
    assert max(seconds.values()) < ddp
