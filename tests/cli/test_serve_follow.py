"""`shoal serve --follow RUN`: a run's checkpoints are versions, tried as shadows and promoted by the rule."""

import shutil
from pathlib import Path

import httpx
import onnx
import pytest
from forked import TRAIN, command, shoal, soon
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from test_serve import WAIT, address, end
from torch import nn

from shoal.models.registry import Registry
from shoal.serve.serving_notice import servers_of

pytestmark = pytest.mark.usefixtures("tidy")
RULE = "requests>=3,errors<=0"


def linear_program(layer: nn.Linear) -> bytes:
    """The layer as torch exports it, which takes seconds there."""
    value = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(each.detach().numpy(), name) for name, each in layer.named_parameters()]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)],
        "linear",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 2])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its last checkpoint, and the program of an earlier version of its model."""
    folder = tmp_path_factory.mktemp("followed")
    (folder / "train.py").write_text(TRAIN)
    (folder / "net.py").write_text("from torch import nn\ndef make(): return nn.Linear(4, 2)\n")
    words = ["run", "--name", "one", "--checkpoint", "5steps", "train.py"]
    done = command(folder, *words, OMP_NUM_THREADS="1", SHOAL_REGISTER="0").wait(100)
    assert done.code == 0, done.err
    layer = nn.Linear(4, 2)
    Registry(folder / "models").add("train", layer.state_dict(), files={"model.onnx": linear_program(layer)})
    return folder


@pytest.fixture
def trained(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "here"))


def expected(folder: Path) -> list[float]:
    """What the checkpoint's layer gives for ones."""
    with safe_open(folder / "worker-0.safetensors", "pt") as file:
        weight, bias = file.get_tensor("0.parameter.weight"), file.get_tensor("0.parameter.bias")
    found: list[float] = (weight.sum(1) + bias).tolist()
    return found


def copy_as_later(folder: Path, runs: Path) -> Path:
    """Another checkpoint of the run, of a later step and with other weights."""
    from shoal.train.checkpoint.manifest import folder_of, read_manifest
    from shoal.train.checkpoint.shard import pieces
    from shoal.train.checkpoint.writer import commit, write_shard

    manifest, step = read_manifest(folder), int(folder.name[5:]) + 5
    layer = nn.Linear(4, 2)
    part = folder_of(runs, step).with_name(f"step-{step:012d}.part")
    part.mkdir()
    named = {f"0.parameter.{name}": each.detach() for name, each in layer.named_parameters()}
    entry = write_shard(part, 0, pieces(named))
    from msgspec.structs import replace

    commit(runs, replace(manifest, step=step, workers=1, shards=[entry]))
    return folder_of(runs, step)


def told(folder: Path) -> dict[int, str]:
    """The checkpoints that `shoal watch` finds to be served now."""
    (found,) = servers_of(folder / "runs/one")
    return {each.step: each.role for each in found.versions if each.role}


@pytest.mark.parametrize("words", [[], ["mine=train:1"]], ids=str)
def test_a_new_checkpoint_is_tried_as_a_shadow_and_promoted(trained: Path, words: list[str]) -> None:
    first = max((trained / "runs/one/checkpoints").iterdir())
    running = command(trained, "serve", "--follow", "one", *words, "--port", "0", "--poll", "20ms", "--rule", RULE)
    base = address(running)

    def answer() -> tuple[int, list[float]]:
        found = httpx.post(f"{base}/predict", content="[[1, 1, 1, 1]]")
        assert found.status_code == 200, found.text
        return found.json()["version"], found.json()["outputs"][0]

    assert answer() == (int(first.name[5:]), pytest.approx(expected(first), abs=1e-5))
    later = copy_as_later(first, trained / "runs/one")
    number = int(later.name[5:])
    assert soon(WAIT, lambda: answer()[0] == number)
    assert answer()[1] == pytest.approx(expected(later), abs=1e-5)
    assert f"{number} is tried: shadow" in running.err.read_text()
    assert soon(WAIT, lambda: told(trained) == {number: "answers"}), "what the page shows"
    end(running)
    assert servers_of(trained / "runs/one") == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--follow", "nobody"], "no run"),
        (["--follow", "one", "a", "b"], "serves one model"),
        (["--follow", "one", "strange"], "the registry has no program of 'strange'"),
        (["--follow", "one", "--module", "net.py:what"], "what"),
        ([], "nothing to serve; give a model"),
    ],
)
def test_what_cannot_be_followed_is_refused_on_one_line(trained: Path, words: list[str], error: str) -> None:
    outcome = shoal(trained, "serve", *words, "--port", "0")
    assert (outcome.code, error in outcome.err, outcome.err.count("\n")) == (2, True, 1), outcome.err
