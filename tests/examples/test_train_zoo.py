"""`make zoo`: a model is trained, registered, loaded in one call, and gives the figures that were recorded."""

import sys
from pathlib import Path

import forked
import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.models import Registry

EXAMPLES = Path(__file__).parents[2] / "examples"


def in_examples(folder: Path, body: object) -> forked.Outcome:
    """Run `body` in a forked process that imports what a script of examples/ imports."""

    def inner() -> None:
        for name in ("models", "mnist", "shakespeare", "zoo", "train_zoo"):  # a test may have imported another
            sys.modules.pop(name, None)
        sys.path.insert(0, str(EXAMPLES))
        body()  # type: ignore[operator]

    return forked.Forked(folder, inner, {"SHOAL_REGISTER": "1"}).wait(100)


def train_gcn() -> None:
    import train_zoo

    train_zoo.RECIPES["gcn"] = train_zoo.Recipe(192, 1, 16)
    words = [word for word in train_zoo.command("gcn", None) if word != "--onnx"]  # tracing is tested elsewhere
    forked._command([words[0], "--name", "one", *words[1:]])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    done = in_examples(folder, train_gcn)
    assert done.code == 0, done.err
    return folder


def test_one_call_loads_a_model_that_reproduces_its_figures(trained: Path) -> None:
    def body() -> None:
        import train_zoo

        registry = Registry("models")
        version = train_zoo.publish("gcn", "one", registry)
        assert version.metrics["accuracy"] is not None
        assert train_zoo.check("gcn", None, registry) == []
        better = registry.add("gcn", registry.tensors(version), metrics={"accuracy": 1.5, "loss": 0.0})
        registry.tag(better.ref, "zoo")
        wrong = train_zoo.check("gcn", None, registry)
        assert [line.split(" is ")[0] for line in wrong] == ["gcn: loss", "gcn: accuracy"], wrong
        registry.tag(version.ref, "zoo")

    done = in_examples(trained, body)
    assert done.code == 0, done.err
    listed = CliRunner().invoke(app, ["models", "zoo", "--verify", "--models", str(trained / "models")])
    assert listed.exit_code == 0, listed.output
    assert listed.output.splitlines()[1].split()[:2] == ["gcn@zoo", "1"]
    assert "accuracy=" in listed.output


def test_weights_of_another_hash_are_refused(trained: Path) -> None:
    def body() -> None:
        import shutil

        from models import pretrained

        from shoal.models import RegistryError

        shutil.copytree("models", "damaged")
        registry = Registry("damaged")
        registry.tag("gcn", "zoo")
        (chunk,) = registry.manifest(registry.get("gcn@zoo")).sizes
        path = registry.blobs.path(chunk)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(RegistryError, match="is damaged: its SHA-256 differs"):
            pretrained("gcn", "damaged")
        with pytest.raises(KeyError, match="no model 'gnc' in the table"):
            pretrained("gnc", "damaged")

    done = in_examples(trained, body)
    assert done.code == 0, done.err
    refused = CliRunner().invoke(app, ["models", "zoo", "--verify", "--models", str(trained / "damaged")])
    assert refused.exit_code == 1
    assert "gcn:" in refused.output.splitlines()[-1]


def test_every_model_of_the_table_has_a_recipe_and_its_data(tmp_path: Path) -> None:
    def body() -> None:
        import train_zoo
        from models import TABLE

        assert list(train_zoo.RECIPES) == list(TABLE)
        data = tmp_path / "data"
        (data / "mnist").mkdir(parents=True)
        for name in TABLE["mlp"].files:
            (data / "mnist" / name).touch()
        (data / "tinyshakespeare.txt").touch()
        found = {name: train_zoo.data_folder(entry, data) for name, entry in TABLE.items()}
        assert found.pop("gcn") is None
        assert found.pop("transformer") == data
        assert set(found.values()) == {data / "mnist"}

    done = in_examples(tmp_path, body)
    assert done.code == 0, done.err


def test_an_empty_zoo_says_how_to_fill_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["models", "zoo", "--models", str(tmp_path)])
    assert (done.exit_code, "'make zoo' trains those" in done.output) == (0, True)
