"""A run that ends well is a version with its lineage; one that fails, or is told not to, is none."""

import json
from pathlib import Path

import forked
import pytest
import torch

from shoal.core.errors import UsageError
from shoal.core.record import RunInfo, write_info
from shoal.models import Registry, load
from shoal.models.lineage import script_name
from shoal.models.program import PROGRAM, SAMPLES, unpack_samples
from shoal.train.registering import Registration, RunFacts

SCRIPT = forked.TRAIN


def run(folder: Path, script: str, *words: str, **env: str) -> forked.Outcome:
    (folder / "Train It.py").write_text(script)
    given = {"SHOAL_REGISTER": "1", "OMP_NUM_THREADS": "1", "SHOAL_RUNS": str(folder / "runs")} | env
    return forked.command(folder, "run", "--name", "one", *words, "Train It.py", **given).wait(100)


def only(folder: Path) -> tuple[Registry, dict[str, object]]:
    registry = Registry(folder / "models")
    (version,) = registry.list()
    return registry, json.loads((folder / "runs/one/model.json").read_text()) | {"version": version}


class TestRun:
    def test_it_is_registered_under_its_scripts_name_with_its_lineage(self, tmp_path: Path) -> None:
        done = run(tmp_path, SCRIPT, "--workers", "2", "--plan", "fp16")
        assert done.code == 0, done.err
        registry, told = only(tmp_path)
        version = registry.get("train-it")
        assert told["model"] == "train-it:1"
        assert told["digest"] == version.digest
        assert "train-it:1" in done.err
        assert (version.run, version.plan, version.workers, version.step) == ("one", str(version.plan), 2, 6)
        assert "fp16" in version.plan
        assert version.metrics == {"quality": 0.5}
        assert version.samples == 48
        assert version.data.startswith("tensors:")
        assert len(version.code) == 64
        lineage = registry.manifest(version).lineage
        assert [member["worker"] for member in lineage.members] == [0, 1]
        assert [(p["epoch"], p["samples"], p["missing"], p["duplicate"]) for p in lineage.ledger] == [
            (0, 24, 0, 0),
            (1, 24, 0, 0),
        ]
        assert [use.step for use in lineage.plans] == [0]
        weight, bias = registry.tensors(version).values()
        assert done.checksum == f"checksum {weight.sum():.6f} {bias.sum():.6f}"

    def test_a_failed_run_is_none(self, tmp_path: Path) -> None:
        assert run(tmp_path, SCRIPT + "\nraise ValueError").code == 1
        assert not (tmp_path / "models").exists()

    def test_register_chooses_the_name_and_snapshots_on_request(self, tmp_path: Path) -> None:
        script = SCRIPT.replace("run.report(", 'run.register("digits", now=True, note="first")\nrun.report(')
        script += '\nrun.register("digits")\nmodel(x).sum().backward()\noptimizer.step()\n'
        assert run(tmp_path, script).code == 0
        versions = Registry(tmp_path / "models").list("digits")
        assert [(v.version, v.step, v.metrics, v.note) for v in versions] == [
            (2, 13, {"quality": 0.5}, ""),
            (1, 12, {}, "first"),
        ]

    def test_a_registry_that_cannot_be_written_costs_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "models").write_text("in the way")
        assert run(tmp_path, SCRIPT).code == 0
        assert "this run was not registered: cannot make" in (tmp_path / "runs/one/worker-0.jsonl").read_text()

    def test_what_was_loaded_is_the_parent(self, tmp_path: Path) -> None:
        registry = Registry(tmp_path / "models")
        first = registry.add("base", torch.nn.Linear(4, 2).state_dict())
        script = SCRIPT.replace("optimizer =", 'import shoal.models\nshoal.models.load("base", model)\noptimizer =', 1)
        assert run(tmp_path, script).code == 0
        version = registry.get("train-it")
        assert version.parent == first.digest
        assert [each.ref for each in registry.lineage(version)] == ["base:1"]
        assert load("train-it", torch.nn.Linear(4, 2), registry) is not None


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFacts:
    """A run of one model whose record is in `tmp_path`."""
    monkeypatch.setenv("SHOAL_REGISTER", "1")
    monkeypatch.setenv("SHOAL_MODELS", str(tmp_path / "models"))
    told = {"run": "one", "plan": "allreduce", "workers": 1, "seed": 0, "script": "train.py", "started": 0.0}
    info = RunInfo(**told, command=[], versions={}, machine={})
    write_info(tmp_path / "runs" / "one", info)
    return RunFacts([torch.nn.Linear(4, 2)], tmp_path / "runs" / "one", 5, 0, {"accuracy": 0.5})


class TestExample:
    def test_samples_and_a_program_are_stored(self, facts: RunFacts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shoal.models.program.trace_onnx", lambda module, inputs: b"program")
        registration = Registration()
        registration.choose("net", example=torch.randn(3, 4))
        assert registration.finish(facts) == ""
        registry = Registry()
        version = registry.get("net")
        assert registry.file(version, PROGRAM) == b"program"
        inputs, outputs = unpack_samples(registry.file(version, SAMPLES))
        assert torch.equal(outputs[0], facts.models[0](inputs[0]))
        assert facts.models[0].training

    def test_a_model_that_cannot_be_traced_is_registered_without_a_program(
        self, facts: RunFacts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(module: object, inputs: object) -> bytes:
            raise UsageError("Linear cannot be exported: odd")

        monkeypatch.setattr("shoal.models.program.trace_onnx", refuse)
        registration = Registration()
        registration.choose("net", example=torch.randn(3, 4))
        assert registration.finish(facts) == "the version has no program: Linear cannot be exported: odd"
        assert [entry.name for entry in Registry().manifest(Registry().get("net")).files] == [SAMPLES]


def test_a_script_under_python_is_registered_where_it_was_started(tmp_path: Path) -> None:
    done = forked.python(tmp_path, SCRIPT + "\nimport os; os.chdir('/')\n", SHOAL_REGISTER="1").wait(100)
    assert done.code == 0, done.err
    version = Registry(tmp_path / "models").get("script")
    assert (version.step, version.workers, len(version.code)) == (12, 1, 64)


def test_it_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_REGISTER", "0")
    facts = RunFacts([torch.nn.Linear(2, 2)], tmp_path, 5, 0, {})
    assert Registration().finish(facts) == ""
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("SHOAL_REGISTER", "no")
    with pytest.raises(UsageError, match="SHOAL_REGISTER='no' is neither 0 nor 1"):
        Registration()


@pytest.mark.parametrize(
    ("script", "name"),
    [("a/Train It.py", "train-it"), ("-c", "c"), ("", "model"), ("__main__.py", "main"), ("x" * 90, "x" * 64)],
)
def test_the_name_of_a_script_is_an_id(script: str, name: str) -> None:
    assert script_name(script) == name
