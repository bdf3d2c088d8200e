"""Versions whose batches replicas compute: the server reads the file, and has each replica load a copy of it."""

from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError

from shoal.core.errors import UsageError
from shoal.serve.errors import LoadRefused, PredictFailed
from shoal.serve.loader import ProgramFileLoader, ServableLoader
from shoal.serve.replicas.hub import ReplicaHub
from shoal.serve.replicas.programs import SharedProgram
from shoal.serve.servable import Servable
from shoal.serve.source import VersionSource
from shoal.serve.tensors import Tensors, TensorSpec

LOADING = 300.0
"""Seconds in which the first replica must have loaded a program, or a batch that is waited for is computed."""


class ReplicatedServable:
    """A program that replicas hold."""

    def __init__(self, hub: ReplicaHub, program: SharedProgram) -> None:
        """The program's specs are known."""
        self._hub, self._program = hub, program
        self.inputs: tuple[TensorSpec, ...]
        self.outputs: tuple[TensorSpec, ...]
        self.inputs, self.outputs = program.specs.result(0)

    @property
    def width(self) -> int:
        return self._hub.width(self._program)

    def submit(self, inputs: Tensors) -> "Future[Tensors]":
        return self._hub.submit(self._program, inputs)

    def predict(self, inputs: Tensors) -> Tensors:
        return self.submit(inputs).result(LOADING)


class ReplicatedLoader:
    """`load` returns once the first replica has loaded the program; others follow, also those that come later."""

    def __init__(self, inner: ServableLoader, hub: ReplicaHub) -> None:
        self._inner, self._hub = inner, hub
        self._program: SharedProgram | None = None

    def estimate(self) -> int:
        """Of one replica."""
        return self._inner.estimate()

    def load(self) -> Servable:
        if not isinstance(self._inner, ProgramFileLoader):
            raise UsageError("replicas get files: .onnx, .json, or a program of the registry; leave --on out")
        with self._inner.program_file() as path:
            self._program = self._hub.programs.hold(path)
        try:
            self._program.specs.result(LOADING)
        except PredictFailed as error:
            self.unload()
            raise LoadRefused(str(error)) from None
        except LateError:
            self.unload()
            raise LoadRefused(f"no replica has loaded it in {LOADING:.0f} s") from None
        return ReplicatedServable(self._hub, self._program)

    def unload(self) -> None:
        if self._program is not None:
            self._hub.programs.release(self._program)
            self._program = None
        self._inner.unload()


class ReplicatedSource:
    """The versions of another source, loaded by replicas."""

    def __init__(self, inner: VersionSource, hub: ReplicaHub) -> None:
        self.name, self._inner, self._hub = inner.name, inner, hub
        self._known: dict[int, tuple[ServableLoader, ReplicatedLoader]] = {}

    def poll(self) -> Mapping[int, ServableLoader]:
        """The same loader as long as the source gives the same one."""
        known, self._known = self._known, {}
        for number, loader in self._inner.poll().items():
            before = known.get(number)
            if before is None or before[0] is not loader:
                before = loader, ReplicatedLoader(loader, self._hub)
            self._known[number] = before
        return {number: pair[1] for number, pair in self._known.items()}
