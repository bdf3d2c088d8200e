"""`examples/classify.py` reads what the form takes, and says what is wrong with it."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def classify() -> object:
    # other tests have a module `models` of their own
    others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "models"}
    sys.path.insert(0, str(EXAMPLES))
    try:
        import classify

        return classify
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
            del sys.modules[name]
        sys.modules.update(others)


def picture(path: Path, tone: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (tone, tone, tone)).save(path)


def test_a_table(classify, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,kind,b\n1,x,2\n3,y,4\n")
    data = classify.read(str(path), "kind")
    assert (data.inputs.tolist(), data.labels.tolist(), data.classes) == ([[1.0, 2.0], [3.0, 4.0]], [0, 1], ["x", "y"])
    assert classify.network("mlp", data)(data.inputs).shape == (2, 2)
    with pytest.raises(SystemExit, match="take mlp"):
        classify.network("lstm", data)


def test_a_table_of_weka(classify, tmp_path: Path) -> None:
    path = tmp_path / "t.arff"
    path.write_text(
        "% Iris\n@RELATION r\n@attribute 'a b' NUMERIC\n@ATTRIBUTE class {x, 'y z'}\n@DATA\n1,x\n\n2, 'y z'\n"
    )
    data = classify.read(str(path), "")
    assert (data.inputs.tolist(), data.labels.tolist(), data.classes) == ([[1.0], [2.0]], [0, 1], ["x", "y z"])
    path.write_text("@attribute a\n@data\n")
    with pytest.raises(SystemExit, match="names no attribute"):
        classify.read(str(path), "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,x\n", "1 classes"),
        ("a,b\nq,x\n1,y\n", "must hold numbers"),
        ("a,b\n1\n", "line 2: 1 values where the header has 2"),
        ("a,b\n", "no rows"),
        ("", "no rows"),
    ],
)
def test_a_table_that_is_wrong(classify, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SystemExit, match=said):
        classify.read(str(tmp_path / "t.csv"), "")


@pytest.mark.parametrize("shape", [(6, 5), (6, 10, 12), (6, 10, 12, 3)])
def test_arrays(classify, tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(shape), y=np.arange(6) % 3)
    data = classify.read(str(tmp_path / "a.npz"), "")
    assert tuple(data.inputs.shape) == ((6, 5) if len(shape) == 2 else (6, 1, 28, 28))
    assert classify.network("mlp", data)(data.inputs).shape == (6, 3)


def test_code_in_an_array_is_not_run(classify, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(ValueError, match="allow_pickle"):
        classify.read(str(tmp_path / "a.npz"), "")


def test_images_in_folders_and_in_an_archive(classify, tmp_path: Path) -> None:
    for kind, tone in (("dark", 10), ("light", 240)):
        for number in range(2):
            picture(tmp_path / "all" / kind / f"{number}.png", tone)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in (tmp_path / "all").rglob("*.png"):
            archive.write(path, path.relative_to(tmp_path))
    for name in ("all", "all.zip"):
        data = classify.read(str(tmp_path / name), "")
        assert (data.classes, tuple(data.inputs.shape)) == (["dark", "light"], (4, 1, 28, 28))
        assert classify.network("resnet18", data)(data.inputs).shape == (4, 2)


def test_what_it_got_wrong_is_told(classify) -> None:
    data = classify.LabelledData(torch.rand(3, 1, 28, 28), torch.tensor([0, 1, 1]), ["a", "b"])
    found = classify.evaluation(data, torch.tensor([0, 0, 1]), torch.arange(3))
    assert found["confusion"] == [[1, 0], [1, 1]]
    assert [(w["index"], w["is"], w["named"], len(w["pixels"])) for w in found["wrong"]] == [(1, 1, 0, 28)]


NET = """
[[layer]]
type = "conv"
channels = 4
[[layer]]
type = "relu"
[[layer]]
type = "maxpool"
[[layer]]
type = "flatten"
[[layer]]
type = "linear"
"""


def built(classify, path: Path, text: str, shape: tuple[int, ...] = (1, 28, 28)) -> torch.nn.Module:
    path.write_text(text)
    return classify.read_layers(path).build(shape, 3)


def test_a_file_of_layers_becomes_a_network(classify, tmp_path: Path) -> None:
    model = built(classify, tmp_path / "net.toml", NET)
    assert [type(module).__name__ for module in model] == ["Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear"]
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 3)
    rows = built(classify, tmp_path / "net.json", '{"layer": [{"type": "linear", "units": 9}, {"type": "tanh"}, '
                 '{"type": "linear"}]}', (7,))  # fmt: skip
    assert rows(torch.zeros(2, 7)).shape == (2, 3)
    lenet = classify.read_layers(EXAMPLES / "lenet.toml").build((1, 28, 28), 10)
    assert sum(p.numel() for p in lenet.parameters()) == 6 * 26 + 16 * (150 + 1) + 84 * 401 + 10 * 85


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[layer]]\ntype = 'konv'\n", "Invalid value 'konv' - at `$.layer[0].type`; there are avgpool, conv"),
        ("[[layer]]\ntype = 'conv'\n", "missing required field `channels`"),
        ("[[layer]]\ntype = 'linear'\nunit = 3\n", "unknown field `unit`"),
        ("[[layer]]\ntype = 'linear'\nunits = 0\n", "`int` >= 1"),
        ("layer = []", "length >= 1"),
        ("[[layer", "net.toml: "),
        ("[[layer]]\ntype = 'relu'\n", "gives 1x28x28 numbers a sample and there are 3 classes"),
        ("[[layer]]\ntype = 'conv'\nchannels = 4\nkernel = 99\n", "layer 1 (conv) does not take 1x28x28"),
        ("[[layer]]\ntype = 'flatten'\n[[layer]]\ntype = 'conv'\nchannels = 4\n", "layer 2 (conv) does not take 784"),
        ("[[layer]]\ntype = 'flatten'\n" + "[[layer]]\ntype = 'linear'\nunits = 1000000\n" * 2, "parameters; at most"),
    ],
)
def test_a_file_of_layers_that_is_wrong(classify, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        built(classify, tmp_path / "net.toml", text)
    assert said in str(caught.value)


@pytest.mark.parametrize(("name", "said"), [("net.yaml", ".toml or .json"), ("none.toml", "No such file")])
def test_layers_that_cannot_be_read(classify, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        classify.read_layers(tmp_path / name)


def test_the_flag_chooses_the_device(classify) -> None:
    given = torch.device("meta")
    assert classify.chosen_device("", given) == given
    assert classify.chosen_device("cpu", given) == torch.device("cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(SystemExit, match=f"--device '{name}' cannot be used here"):
            classify.chosen_device(name, given)
