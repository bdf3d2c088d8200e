"""Every peer trains the script that Shoal trains; DDP comes to the same weights."""

import re
from pathlib import Path

import pytest
from forked import TRAIN, Forked, Outcome, train

from shoal.bench import peer
from shoal.bench.peers.table import PEERS
from shoal.core.record import read_info

HIDDEN = TRAIN.replace("nn.Linear(4, 2)", "nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))")
"""With a matrix that is worth compressing."""


def by_peer(folder: Path, script: str, *words: str) -> Outcome:
    (folder / "script.py").write_text(script)
    given = [*words, "--workers", "2", "--json", "script.py"]
    return Forked(folder, lambda: exit_with(peer.main(given))).wait(60)


def exit_with(code: int) -> None:
    raise SystemExit(code)


def numbers(outcome: Outcome) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+\.\d+", outcome.checksum)]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The weights that Shoal comes to."""
    return numbers(train(tmp_path_factory.mktemp("ours"), HIDDEN, "--workers", "2", "--seed", "3"))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_trains_the_script(tmp_path: Path, name: str, ours: list[float]) -> None:
    outcome = by_peer(tmp_path, HIDDEN, name, "--seed", "3", "--name", "one")
    assert outcome.code == 0, outcome.err
    summary = outcome.json
    assert (summary["plan"], summary["workers"], summary["steps"], summary["samples"]) == (name, 2, 6, 48)
    assert summary["metrics"] == {"quality": 0.5}
    assert read_info(tmp_path / "runs/one").seed == 3
    assert not list(tmp_path.glob("runs/*/rendezvous-*"))
    near = {"ddp": 1e-5, "ddp-fp16": 1e-2}.get(name, 1.0)
    assert numbers(outcome) == pytest.approx(ours, abs=near)
    assert (numbers(outcome) == pytest.approx(ours, abs=1e-5)) == (name == "ddp")
    share = summary["bytes_sent"] / summary["bytes_raw"] if summary["bytes_raw"] else None
    low = (2 * 114 + 4 * (20 + 16 + 32 + 2)) / (6 * 114)  # two steps in full, then the one matrix worth it in factors
    assert share == {"ddp": 1.0, "ddp-fp16": 0.5, "ddp-powersgd": low}.get(name)


def test_accumulated_and_uneven_batches_are_trained_too(tmp_path: Path) -> None:
    script = TRAIN.replace("randn(24", "randn(25").replace(
        "        loss =", "        with run.accumulate():\n            model(x).mean().backward()\n        loss ="
    )
    outcome = by_peer(tmp_path, script, "ddp")
    assert outcome.code == 0, outcome.err
    assert outcome.json["samples"] == 48  # the step with one sample for two workers is left out


def test_a_failing_script_is_told(tmp_path: Path) -> None:
    outcome = by_peer(tmp_path, "raise ValueError('no')", "ddp")
    assert outcome.code == 1
    assert "failed: ValueError: no" in outcome.err
    assert by_peer(tmp_path, "", "ddp", "--seed", "-1").code == 2


def test_parameters_of_no_model_are_refused(tmp_path: Path) -> None:
    lost = "import shoal, torch\nrun = shoal.start()\nw = torch.zeros(2, requires_grad=True)\n"
    outcome = by_peer(tmp_path, lost + "run.join(torch.optim.SGD([w], lr=1.0))\n", "ddp")
    assert outcome.code == 1
    assert "belongs to no joined model" in outcome.err
