"""The benchmark of codecs: which steps count, what stands in the plan of turns, and a small table from end to end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.bench.contestant import PEER_NAMES
from shoal.lab.needs import missing
from shoal.plan.load import load

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import network_bench  # noqa: E402
import wire_docs  # noqa: E402
import wire_marks  # noqa: E402
import wire_stages  # noqa: E402
from wire_stages import Cell, Stage  # noqa: E402

RATES = [0, 10**9, 10**8, 10**7]
MLP, TRANSFORMER = Cell("mlp", 2, 7_454_760), Cell("transformer", 4, 19_000_000)
in_lab = pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))


def test_every_contestant_is_a_plan_or_a_peer() -> None:
    for name in wire_stages.SHARES:
        assert name in PEER_NAMES or load(name)
    assert load("dgc(0.001)").wire[0].ratio == 0.001  # type: ignore[attr-defined]
    assert load("dgc(0.001)").wire[0].warmup == 0  # type: ignore[attr-defined]


def test_the_perceptron_is_what_the_page_says() -> None:
    assert network_bench.facts_of("mlp", "")["parameters"] == 784 * 1024 + 1024 * 1024 + 10 * 1024 + 2 * 1024 + 10


def test_steps_are_cut_where_the_rate_changes() -> None:
    stages = [Stage(0, 3, 4), Stage(10**9, 2, 2), Stage(10**7, 0, 1)]
    assert wire_stages.limits_of(stages) == {7: 10**9, 11: 10**7}
    cut = wire_stages.sliced(stages, [float(step) for step in range(12)])
    assert cut == {0: [3.0, 4.0, 5.0, 6.0], 10**9: [9.0, 10.0], 10**7: [11.0]}


@pytest.mark.parametrize("cell", [MLP, TRANSFORMER], ids=["mlp", "transformer"])
@pytest.mark.parametrize("name", wire_stages.SHARES)
def test_a_turn_goes_from_fast_to_slow_and_counts_something_everywhere(cell: Cell, name: str) -> None:
    stages = cell.stages(name, RATES, 1.2)
    assert [stage.rate for stage in stages] == RATES
    assert stages[0].uncounted > wire_stages.POWER_FROM
    assert all(stage.counted for stage in stages)
    assert cell.stages(name, [10**8], 1.2)[0] == Stage(0, wire_stages.WARM, 0)


def test_what_chooses_counts_when_it_has_chosen() -> None:
    assert MLP.auto_stage(10**8, 1.2).uncounted == 11
    assert MLP.has_auto(10**8)
    assert not MLP.has_auto(10**7)


def test_long_steps_are_few() -> None:
    assert TRANSFORMER.stages("ddp", RATES, 1.2)[-1] == Stage(10**7, 0, 1)
    assert not TRANSFORMER.repeated(10**8)
    assert MLP.repeated(0)


def test_who_stands_in_a_figure_that_was_asked_has_more_turns() -> None:
    names = ["alone", "ddp", "ddp-fp16", "ddp-powersgd", "allreduce", "onebit", "topk(0.01)", "dgc(0.001)"]
    place = {"model": "mlp", "delay": 0.0, "repeat": 0}
    turns = [
        {**place, "rate": rate, "contestant": name, "steps": [0.9 - 0.1 * number if rate else 0.1 + 0.1 * number]}
        for rate in (0, 10**8)
        for number, name in enumerate(names)
    ]
    raw = {"turns": turns, "contestants": names}
    assert wire_marks.contenders(raw, "mlp", 0) == {"ddp-fp16", "onebit"}
    assert wire_marks.contenders(raw, "mlp", 10**8) == {"alone", "ddp-powersgd", "onebit", "dgc(0.001)"}
    assert wire_marks.contenders(raw, "mlp", 10**7) == set()
    assert MLP.soon("onebit", 10**8)
    assert not TRANSFORMER.soon("onebit", 10**7)


def test_a_table_is_put_between_its_marks() -> None:
    page = f"before\n{wire_docs.BEGIN}\nold\n{wire_docs.END}\nafter\n"
    once = wire_docs.put(page, "new")
    assert once == f"before\n{wire_docs.BEGIN}\n\nnew\n\n{wire_docs.END}\nafter\n"
    assert wire_docs.put(once, "new") == once
    with pytest.raises(SystemExit, match="lacks"):
        wire_docs.put("before", "new")


def command(out: Path, data: Path, *words: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks/wire.py"), "--data", str(data), "--out", str(out), *words]


@pytest.mark.soak
def test_what_there_is_not_is_refused_in_a_line(tmp_path: Path, noise: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for words, why in ((["--hosts", "1"], "--hosts"), (["--contestants", "onebit,fp61"], "unknown fp61")):
        done = subprocess.run(command(tmp_path, noise, *words), env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, why in done.stderr.splitlines()[-1]) == (2, True), done.stderr


@pytest.mark.soak
@in_lab
def test_a_small_table_is_measured_and_written(tmp_path: Path, noise: Path) -> None:
    out, env = tmp_path / "out", os.environ | {"PYTHONPATH": str(ROOT / "src")}
    words = ["--models", "mlp", "--hosts", "2", "--rates", "none,100mbit"]
    words += ["--contestants", "alone,ddp,dgc(0.001),wire(auto)"]
    words += ["--seeds", "0", "--close", "0", "--judged", "0", "--seconds", "0.2"]
    done = subprocess.run(command(out, noise, *words), env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    raw = json.loads(next(out.glob("*-wire.json")).read_text())
    assert len(raw["turns"]) == 8
    assert all(turn["steps"] for turn in raw["turns"])
    sent = {turn["contestant"]: turn["wire"] for turn in raw["turns"] if turn["rate"]}
    assert sent["alone"] == 0 < 100 * sent["dgc(0.001)"] < sent["ddp"]
    assert {turn["chose"] for turn in raw["turns"] if turn["contestant"] == "wire(auto)" and turn["rate"]} != {""}
    assert not (out / "wire.part.jsonl").exists()
    assert str(tmp_path) not in json.dumps(raw)


@pytest.mark.soak
@in_lab
def test_a_stopped_benchmark_goes_on_where_it_was(tmp_path: Path, noise: Path) -> None:
    out, env = tmp_path / "out", os.environ | {"PYTHONPATH": str(ROOT / "src")}
    words = ["--models", "mlp", "--hosts", "2", "--rates", "none", "--seeds", "0", "--close", "0", "--judged", "0"]
    words += ["--contestants", "alone,allreduce", "--seconds", "0.2"]
    kept = out / "wire.part.jsonl"
    begun = subprocess.Popen(command(out, noise, *words), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 60
    while not (kept.exists() and len(kept.read_text().splitlines()) > 1) and time.monotonic() < until:
        time.sleep(0.05)
    begun.send_signal(signal.SIGINT)
    said, _ = begun.communicate(timeout=60)
    assert begun.returncode == 130, said
    assert b"goes on from there" in said
    done = subprocess.run(command(out, noise, *words), env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "alone" not in done.stdout.split("# Codecs")[0]
