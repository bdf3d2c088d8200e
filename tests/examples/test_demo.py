"""The demo says what it measured, and fails where a claim does not hold; `make demo` itself runs in CI."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.plan.plan import Plan
from shoal.plan.rules import check

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("demo")


def row(name: str, seconds: float | None, peer: bool = False) -> dict[str, Any]:
    goal = None if seconds is None else {"median": seconds}
    measured = {"curve": [{"metrics": {"accuracy": 0.96}}]}
    contestant = name if peer else f"allreduce, every(1){', ' if name else ''}{name}"
    trials = [{"measured": measured}]
    return {"contestant": contestant, "peer": peer, "goal_seconds": goal, "bytes_per_step": 1e5, "trials": trials}


def test_every_plan_of_the_demo_can_be_read(demo: ModuleType) -> None:
    for text in demo.PLANS:
        check(Plan.parse(text), 2)


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([row("", 9.0), row("int8", 2.0), row("ddp", 8.0, True)], []),
        ([row("", 9.0), row("int8", 8.5), row("ddp", 8.0, True)], ["no plan of Shoal's is faster than DDP"]),
        ([row("", 9.0), row("int8", None), row("ddp", 10.0, True)], ["int8 did not reach an accuracy of 0.95"]),
    ],
    ids=["holds", "slower", "not reached"],
)
def test_a_slow_network_is_judged(demo: ModuleType, rows: list[dict[str, Any]], broken: list[str]) -> None:
    result = demo.DemoResult()
    demo.compare(rows, "shoal bench", result)
    assert [text[: len(wanted)] for text, wanted in zip(result.broken, broken, strict=True)] == broken
    assert [name for name, _ in result.bars][:2] == ["DDP", "no codec"]


def test_two_workers_that_end_elsewhere_than_one_fail_it(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([0.97, 0.96])
    monkeypatch.setattr(demo, "run", lambda _: {"seconds": 1.0, "metrics": {"accuracy": next(found)}})
    result = demo.DemoResult()
    demo.same_accuracy(Path("out"), result)
    assert result.broken == ["two workers reach 0.9600, one process 0.9700"]
    assert [line.command.split()[:4] for line in result.lines] == [["shoal", "run", "--workers", n] for n in "12"]


def test_a_broken_claim_is_the_exit_code(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the picture are there all the same."""

    def part(_out: Path, result: Any) -> None:
        """Part 1."""
        result.lines.append(demo.DemoLine("a & b", 2, 1.0, 0.5, "lost 3", "shoal run"))
        result.steps, result.bars = [(0.0, 0.1), (0.2, 0.7)], [("DDP", 8.0), ("<int8>", 2.0)]
        result.claim(False, "3 samples were lost")

    monkeypatch.setattr(demo, "PARTS", {"1": part})
    monkeypatch.setattr(sys, "argv", ["demo.py", "--parts", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="a claim does not hold: 3 samples were lost"):
        demo.main()
    assert "1: shoal run" in capsys.readouterr().out
    picture = (tmp_path / "demo.svg").read_text()
    assert "the longest 0.70 s" in picture
    assert "&lt;int8&gt;" in picture


def test_without_a_lab_the_demo_says_why(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "lab_prefix", lambda: ((), "root (use sudo)"))
    result = demo.DemoResult()
    demo.slow_network(Path("out"), result)
    assert (result.lines, result.broken) == ([], [])
    assert "this user lacks root (use sudo)" in result.notes[0]
