"""The benchmark of losses: what its logs say, what it keeps when it is stopped, and whence its page comes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "benchmarks" / "reports"
sys.path.append(str(ROOT / "benchmarks"))

import recovery  # noqa: E402
import recovery_log  # noqa: E402
from kept import Kept  # noqa: E402
from recovery_log import Step  # noqa: E402
from recovery_report import markdown, wanted  # noqa: E402

SETTINGS = {"workers": 4, "lab": "4 hosts, 100mbit"}


def loss(seconds: float, noticed: float | None, step: float = 0.6, again: int = 0) -> dict[str, Any]:
    return {"seconds": seconds, "again": again, "step": step, "noticed": noticed}


def made_up(freeze: float = 2.8, during: float = 190.0) -> dict[str, Any]:
    """A report nobody measured."""
    samples = {"lost": 0, "doubled": 0, "epochs": 3}
    rates = {"error": "", "calm": 200.0, "during": during, "step": 0.6, "samples": samples}
    outage = {**rates, "outage": 60.0, "pause": 0.9, "losses": 0, "again": 0}
    churn = {**rates, "churn": 600.0, "every": 15.0, "kills": 40, "standstills": [0.9, 1.1, 1.0]}
    kills = {"error": "", "losses": [loss(1.0, 0.1), loss(1.5, 0.2), loss(1.2, 0.1)], "samples": samples}
    freezes = {"error": "", "losses": [loss(3.2, freeze), loss(3.3, 2.9)], "samples": samples}
    parts = [
        {"contestant": "Shoal", "part": "kills", **kills},
        {"contestant": "Shoal", "part": "freezes", **freezes},
        {"contestant": "Shoal", "part": "coordinator", **outage},
        {"contestant": "Shoal", "part": "goodput", **churn},
        {"contestant": "torchrun", "part": "kills", "error": "", "losses": [loss(9.0, None, again=4)]},
        {"contestant": "torchft", "part": "kills", "error": "not | within 120 s"},
    ]
    versions = {"Shoal": "Shoal 0", "torchrun": "torchrun 0", "torchft": "torchft 0"}
    return {"commands": ["python x"], "machine": "None.", "notes": [], "versions": versions, **SETTINGS, "parts": parts}


def test_a_published_page_follows_from_its_figures() -> None:
    for path in REPORTS.glob("*-recovery.json"):
        assert markdown(json.loads(path.read_text())) == path.with_suffix(".md").read_text(), path.name


def test_what_is_wanted_is_judged_by_what_was_measured() -> None:
    assert {row[3] for row in wanted(made_up())} == {"held"}
    assert len(wanted(made_up())) == 8
    late = {row[0]: row[3] for row in wanted(made_up(freeze=3.01, during=160.0))}
    assert [figure for figure, held in late.items() if held != "held"] == [
        "a freeze is noticed, worst of 2",
        "goodput, a kill every 15 s for 600 s",
    ]


def test_a_freeze_may_take_four_steps_where_those_are_longer() -> None:
    raw = made_up(freeze=3.9)
    raw["parts"][1]["losses"][0]["step"] = 1.0
    assert {row[3] for row in wanted(raw)} == {"held"}


def test_the_page_has_a_column_for_each() -> None:
    page = markdown(made_up())
    assert "| Shoal 0 | torchrun 0 | torchft 0 |" in page
    assert "| a worker killed, others commit again: median, worst, s | 1.20, 1.50 | 9.00, 9.00 | – |" in page
    assert "| goodput: samples/s that count, of those in peace | 95.0% | – | – |" in page
    assert "kills: not / within 120 s" in page


def test_parts_are_kept_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    peers, own = recovery.entry_of("torchrun", "kills"), recovery.entry_of("Shoal", "kills")
    first = Kept(path, SETTINGS, fresh=False)
    first.add({**peers, "error": "", "losses": []})
    first.add({**own, "error": "it ended"})
    with path.open("a") as file:
        file.write('{"contestant": "Sh')
    again = Kept(path, SETTINGS, fresh=False)
    assert again.has(peers)
    assert not again.has(own)
    again.add({**own, "error": ""})
    assert [entry["contestant"] for entry in recovery.newest(again)] == ["Shoal", "torchrun"]
    assert not any(entry["error"] for entry in recovery.newest(again))
    with pytest.raises(SystemExit, match="--fresh"):
        Kept(path, {**SETTINGS, "lab": ""}, fresh=False)


def test_logs_tell_standstills_and_batches() -> None:
    sizes = {1: 4, 2: 4, 3: 3, 4: 3, 5: 4, 6: 4, 7: 4, 8: 4}
    moments = {1: 1.0, 2: 2.0, 3: 4.0, 4: 5.0, 5: 7.5, 6: 8.5, 7: 9.5, 8: 10.5}
    made = [Step(moments[n] + pid / 100, n, size, pid) for n, size in sizes.items() for pid in range(size)]
    assert recovery_log.standstills(made, 1.0) == [pytest.approx(1.5)]
    assert recovery_log.used(made, 4) == (2, 0)
    assert recovery_log.made_again(made, 0.0, 99.0) == 0
    assert recovery_log.longest_pause(made, 0.5, 11.0) == pytest.approx(2.5)
    assert recovery_log.seconds_of_step(made, 0.0, 99.0) == pytest.approx(1.0)
