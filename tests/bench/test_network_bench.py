"""The benchmark of slow networks: what it keeps when it is stopped, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.lab.load import parse_lab
from shoal.lab.needs import missing

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import network  # noqa: E402
import network_bench  # noqa: E402
from kept import Kept  # noqa: E402
from report import without_paths  # noqa: E402

TURN = {"kind": "turns", "model": "cnn", "rate": 0, "delay": 0.0, "contestant": "ddp", "repeat": 0}


def kept(tmp_path: Path, fresh: bool = False, **settings: Any) -> Kept:
    return Kept(tmp_path / "part.jsonl", {"repeats": 3, **settings}, fresh)


def test_what_was_measured_is_kept_though_the_last_line_is_torn(tmp_path: Path) -> None:
    first = kept(tmp_path)
    assert not first.has(TURN)
    first.add({**TURN, "steps": [0.5]})
    with first.path.open("a") as file:
        file.write('{"kind": "turns", "mod')
    again = kept(tmp_path)
    assert again.has(TURN)
    assert not again.has({**TURN, "repeat": 1})
    again.add({**TURN, "repeat": 1, "steps": [0.6]})
    assert [each["steps"] for each in kept(tmp_path).of("turns")] == [[0.5], [0.6]]


def test_what_failed_is_tried_again_and_then_forgotten(tmp_path: Path) -> None:
    file = kept(tmp_path)
    file.add({**TURN, "steps": [], "error": "shoal: worker 1 failed"})
    assert not file.has(TURN)
    assert len(file.of("turns")) == 1
    file.add({**TURN, "steps": [0.5]})
    assert file.has(TURN)
    assert [each["steps"] for each in file.of("turns")] == [[0.5]]


def test_other_options_do_not_mix(tmp_path: Path) -> None:
    kept(tmp_path).add({**TURN, "steps": [0.5]})
    with pytest.raises(SystemExit, match="--fresh"):
        kept(tmp_path, repeats=5)
    assert not kept(tmp_path, fresh=True, repeats=5).has(TURN)


def test_networks_as_text() -> None:
    assert network.parse_network("100mbit/20ms") == (10**8, 0.02)
    assert network.parse_network("none/0ms") == (0, 0.0)
    assert parse_lab(network_bench.lab_text(4, 0.0, {})) == parse_lab("4 hosts")
    limited = parse_lab(network_bench.lab_text(4, 0.02, {1: 10**8, 9: 10**7}))
    assert [str(host.link.delay) for host in limited.hosts] == ["20ms"] * 4
    assert [str(event) for event in limited.events] == [
        "at step 1: hosts 0, 1, 2, 3: rate 100mbit",
        "at step 9: hosts 0, 1, 2, 3: rate 10mbit",
    ]


def test_both_models_are_what_the_page_says() -> None:
    facts = {name: network_bench.facts_of(name, "")["parameters"] for name in network.GOALS}
    assert facts["cnn"] == 80_202
    assert 4.5e6 < facts["transformer"] < 5.5e6


def test_paths_do_not_get_into_a_report() -> None:
    assert without_paths(["--data", "/here", "--quick"]) == ["--data", "DIR", "--quick"]


@pytest.mark.soak
@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_a_small_table_is_measured_and_written(tmp_path: Path, noise: Path) -> None:
    words = ["--models", "cnn", "--networks", "100mbit/1ms", "--contestants", "alone,ddp,allreduce"]
    words += [
        "--repeats",
        "1",
        "--seconds",
        "0.5",
        "--seeds",
        "0",
        "--data",
        str(noise),
        "--out",
        str(tmp_path / "out"),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/network.py"), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    raw = json.loads(next((tmp_path / "out").glob("*-network.json")).read_text())
    assert [turn["contestant"] for turn in raw["turns"]] == ["alone", "ddp", "allreduce"]
    assert all(turn["steps"] for turn in raw["turns"])
    assert not (tmp_path / "out/network.part.jsonl").exists()
    assert str(tmp_path) not in json.dumps(raw)
