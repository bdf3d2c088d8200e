"""Training that serves itself: each checkpoint of a run is a version, numbered by its step (`serve --follow RUN`).

A checkpoint holds weights and no code. They go into the module that the user names (`--module`), or into the program of
a version that the registry has of this model (`refreshed.py`). A checkpoint that the run has removed since stays while
it is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import LayoutError, UsageError
from shoal.models.registry import Registry
from shoal.serve.loader import ProgramFileLoader, ServableLoader
from shoal.serve.programs import ModuleLoader, OnnxLoader
from shoal.serve.refreshed import WAY_OUT, RefreshableProgram
from shoal.serve.source import PROGRAM, LoadOptions
from shoal.serve.tensors import Array
from shoal.train.checkpoint.manifest import MANIFEST, listed

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.serve.servable import Servable

MOST_LISTED = 64
"""Checkpoints of a run that are looked at, the newest."""


class RefreshedPrograms:
    """Makes loaders from the program of a version of the registry, which is read once."""

    def __init__(self, registry: Registry, ref: str, how: LoadOptions) -> None:
        self._registry, self._ref, self._how = registry, ref, how
        self._base: RefreshableProgram | None = None

    def loader(self, weights: "dict[str, Tensor]", source: str) -> ServableLoader:
        program = self._program().with_weights(arrays_of(weights), source)
        return OnnxLoader(lambda: program, len(program), self._how.threads, self._how.mapped)

    def check(self) -> None:
        """UsageError unless there is a program whose weights can be replaced."""
        self._program()

    def _program(self) -> RefreshableProgram:
        if self._base is None:
            self._base = self._read()
        return self._base

    def _read(self) -> RefreshableProgram:
        versions = [self._registry.get(self._ref)] if set(self._ref) & set(":@") else self._registry.list(self._ref)
        for version in sorted(versions, key=lambda each: -each.version):
            if any(file.name == PROGRAM for file in self._registry.manifest(version).files):
                weights = arrays_of(self._registry.tensors(version))
                return RefreshableProgram(self._registry.file(version, PROGRAM), weights, version.ref)
        raise UsageError(
            f"the registry has no program of {self._ref!r} whose weights a checkpoint could replace; {WAY_OUT}, or "
            "register one with run.register(NAME, example=inputs)"
        )


class FilledModules:
    """Makes loaders from the user's function, which returns the module."""

    def __init__(self, place: str) -> None:
        self._place = place

    def loader(self, weights: "dict[str, Tensor]", source: str) -> ServableLoader:
        from shoal.models.exporting import load_module

        size = sum(each.nbytes for each in weights.values())
        return ModuleLoader(lambda: load_module(self._place), lambda module: fill_named(module, weights, source), size)

    def check(self) -> None:
        from shoal.models.exporting import load_module

        load_module(self._place)


class CheckpointLoader:
    """One checkpoint; read when it is loaded, let go of when it is unloaded."""

    def __init__(self, folder: Path, programs: "RefreshedPrograms | FilledModules") -> None:
        self._folder, self._programs = folder, programs
        self._inner: ServableLoader | None = None

    @property
    def is_loaded(self) -> bool:
        return self._inner is not None

    # Worker 0's file holds the model; a glob, because the run may have removed it by now.
    def estimate(self) -> int:
        return sum(each.stat().st_size for each in self._folder.glob("worker-0.safetensors"))

    def load(self) -> "Servable":
        from shoal.train.checkpoint.weights import read_weights

        _, weights = read_weights(self._folder)
        inner = self._programs.loader(weights, self._folder.name)
        servable = inner.load()
        self._inner = inner
        return servable

    @contextmanager
    def program_file(self) -> Iterator[Path]:
        from shoal.train.checkpoint.weights import read_weights

        inner = self._programs.loader(read_weights(self._folder)[1], self._folder.name)
        if not isinstance(inner, ProgramFileLoader):
            raise UsageError("--module is code of this machine, not a file; follow the run into a registered program")
        with inner.program_file() as path:
            self._inner = inner
            yield path

    def unload(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.unload()


class FollowSource:
    """The checkpoints of the run in `directory`."""

    def __init__(self, name: str, directory: Path, programs: "RefreshedPrograms | FilledModules") -> None:
        self.name, self.directory, self._programs = name, directory, programs
        self._loaders: dict[int, CheckpointLoader] = {}

    def poll(self) -> Mapping[int, ServableLoader]:
        found = {step: each for step, each in self._loaders.items() if each.is_loaded}
        for folder in listed(self.directory)[:MOST_LISTED]:
            step = int(folder.name.removeprefix("step-"))
            # A checkpoint's manifest is written last, so the others are unfinished.
            if (folder / MANIFEST).is_file():
                found[step] = self._loaders.get(step) or CheckpointLoader(folder, self._programs)
        self._loaders = found
        if not found:
            raise UsageError(f"{str(self.directory)!r} has no checkpoint yet; train with --checkpoint, and try again")
        return dict(found)


def has_checkpoint(directory: Path) -> bool:
    return any((folder / MANIFEST).is_file() for folder in listed(directory))


def wait_for_checkpoint(directory: Path, pause: Callable[[], None], attempts: int) -> None:
    """Until the run has written its first checkpoint; UsageError if it does not within so many pauses."""
    for _ in range(attempts):
        if has_checkpoint(directory):
            return
        pause()
    raise UsageError(
        f"{str(directory)!r} has no checkpoint yet; is the run alive, and was it started with --checkpoint?"
    )


def arrays_of(weights: "Mapping[str, Tensor]") -> dict[str, Array]:
    """As numpy has them; bfloat16, which it has not, as float32."""
    import torch

    found = {name: each.detach().cpu() for name, each in weights.items()}
    return {name: (each.float() if each.dtype == torch.bfloat16 else each).numpy() for name, each in found.items()}


def fill_named(module: Any, weights: "Mapping[str, Tensor]", source: str) -> None:
    """Copy a checkpoint into a module, whose parameters and buffers must have the same names and shapes."""
    import torch

    # All are checked before the first is copied, so a misfit leaves no module that is half old.
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name in (*own, *weights):
        mine, given = own.get(name), weights.get(name)
        if mine is None or given is None or mine.shape != given.shape:
            raise LayoutError(
                f"{name!r} is {_shape(mine)} in the module and {_shape(given)} in {source}; is it another architecture?"
            )
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(weights[name])


def _shape(tensor: Any) -> str:
    return "absent" if tensor is None else str(list(tensor.shape))
