"""Checkpoints as versions: a program or a module with their weights answers as the trained module would."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import core_of, named, write_checkpoint
from torch import nn

from shoal.core.errors import LayoutError, UsageError
from shoal.models.program import run_onnx, trace_onnx
from shoal.models.registry import Registry
from shoal.serve.follow import FollowSource, RefreshedPrograms, arrays_of, fill_named, wait_for_checkpoint
from shoal.serve.loader import ProgramFileLoader
from shoal.serve.refreshed import RefreshableProgram
from shoal.serve.source import LoadOptions


class TiedModel(nn.Module):
    """Embedding and output share a matrix, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


MODELS: dict[str, tuple[Any, torch.Tensor]] = {
    "transposed": (
        lambda: nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
        torch.randint(0, 10, (2, 5)),
    ),
    "tied": (TiedModel, torch.randint(0, 10, (2, 5))),
}


def trained(module: nn.Module) -> nn.Module:
    """The module with all weights changed."""
    with torch.no_grad():
        for each in module.parameters():
            each.add_(torch.randn_like(each))
    return module


@pytest.mark.parametrize("kind", MODELS)
def test_a_refreshed_program_computes_what_the_module_does(kind: str) -> None:
    make, x = MODELS[kind]
    module = make()
    program = RefreshableProgram(trace_onnx(module, [x]), arrays_of(module.state_dict()), "m:1")
    trained(module)
    found = run_onnx(program.with_weights(arrays_of(named(module)), "step-1"), [x])[0]
    assert torch.allclose(found, module(x).detach(), atol=1e-5)


def test_a_program_into_which_weights_were_folded_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    trained(module)
    with pytest.raises(UsageError, match=r"does not hold '\S+' as it is \(it was folded\); give --module"):
        RefreshableProgram(trace_onnx(module, [torch.randn(2, 1, 8, 8)]), arrays_of(module.state_dict()), "m:1")


def test_values_that_several_weights_have_are_not_guessed() -> None:
    from shoal.serve.refreshed import find_weights

    zeros = np.zeros(3, dtype=np.float32)
    assert find_weights({"val_1": zeros}, {"a.bias": zeros, "b.bias": zeros}) == {}
    assert find_weights({"a.bias": zeros}, {"a.bias": zeros, "b.bias": zeros}) == {"a.bias": ("a.bias", False)}
    square = np.eye(3, dtype=np.float32)
    assert find_weights({"val_1": square}, {"w": square}) == {}  # as it is, or transposed?


def test_weights_of_another_architecture_are_refused() -> None:
    module = nn.Linear(4, 2)
    program = RefreshableProgram(trace_onnx(module, [torch.randn(2, 4)]), arrays_of(module.state_dict()), "m:1")
    with pytest.raises(UsageError, match=r"'weight' has shape \[2, 4\] in m:1, and step-1 has shape \[2, 5\]"):
        program.with_weights(arrays_of(named(nn.Linear(5, 2))), "step-1")
    with pytest.raises(LayoutError, match=r"'weight' is \[2, 4\] in the module and \[2, 5\] in step-1"):
        fill_named(nn.Linear(4, 2), named(nn.Linear(5, 2)), "step-1")


class PlainPrograms:
    """Gives modules without a registry."""

    def loader(self, weights: dict[str, torch.Tensor], source: str) -> Any:
        from shoal.serve.programs import ModuleLoader

        return ModuleLoader(lambda: nn.Linear(2, 2), lambda module: fill_named(module, weights, source), 0)

    def check(self) -> None: ...


def test_a_checkpoint_is_a_version_and_stays_while_it_is_loaded(tmp_path: Path) -> None:
    source = FollowSource("net", tmp_path, PlainPrograms())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no checkpoint yet"):
        source.poll()
    folder = write_checkpoint(tmp_path, 5, nn.Linear(2, 2))
    core = core_of(source)
    assert core.manager.serving("net") == 5
    shutil.rmtree(folder)
    core.poll()
    assert core.manager.serving("net") == 5
    write_checkpoint(tmp_path, 10, nn.Linear(2, 2))
    core.poll()
    core.poll()
    assert core.manager.serving("net") == 10
    assert list(source.poll()) == [10]


def test_a_damaged_checkpoint_leaves_the_one_before_in_service(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, nn.Linear(2, 2))
    core = core_of(FollowSource("net", tmp_path, PlainPrograms()))  # type: ignore[arg-type]
    folder = write_checkpoint(tmp_path, 10, nn.Linear(2, 2))
    (folder / "worker-0.safetensors").write_bytes(b"")
    core.poll()
    assert core.manager.serving("net") == 5
    assert "no checkpoint to import" in core.manager.versions("net")[-1].error


def test_the_first_checkpoint_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    waits: list[int] = []

    def pause() -> None:
        waits.append(1)
        if len(waits) == 3:
            write_checkpoint(tmp_path / "one", 5, nn.Linear(2, 2))

    wait_for_checkpoint(tmp_path / "one", pause, attempts=9)
    assert len(waits) == 3
    with pytest.raises(UsageError, match="is the run alive"):
        wait_for_checkpoint(tmp_path / "other", lambda: None, attempts=3)


def test_a_checkpoint_is_a_file_that_replicas_can_be_sent(tmp_path: Path) -> None:
    module, x = nn.Linear(2, 3), torch.randn(4, 2)
    registry = Registry(tmp_path / "models")
    registry.add("m", module.state_dict(), files={"model.onnx": trace_onnx(module, [x])})
    write_checkpoint(tmp_path / "run", 5, trained(module))
    source = FollowSource("m", tmp_path / "run", RefreshedPrograms(registry, "m", LoadOptions()))
    loader = source.poll()[5]
    assert isinstance(loader, ProgramFileLoader)
    with loader.program_file() as path:
        found = run_onnx(path.read_bytes(), [x])[0]
    assert torch.allclose(found, module(x).detach(), atol=1e-5)
