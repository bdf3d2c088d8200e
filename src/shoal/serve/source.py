"""Sources: where versions come from. A source looks, and gives one loader for each version that exists.

folder      /models/digits/1/model.onnx, /models/digits/2/… : a number is a version
registry    digits@prod, digits:3, or digits (its newest)
file        one .onnx, .pt2 or .json file, or FILE.py:FUNCTION; a changed file is the next version
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.core.errors import UsageError
from shoal.models.locks import VersionHold
from shoal.models.registry import Registry
from shoal.models.version import ModelRef, ModelVersion
from shoal.serve.loader import ObjectLoader, ProgramFileLoader, ServableLoader, TableLoader
from shoal.serve.mapped import MappedPrograms
from shoal.serve.programs import ModuleLoader, OnnxLoader, ProgramLoader

PROGRAM = "model.onnx"
"""What a registry calls the program; its own module would import torch."""
NAMES = (PROGRAM, "model.pt2", "table.json")
"""Files that a version's folder may hold, in this order."""
ENDINGS = (".onnx", ".pt2", ".json")


@dataclass(frozen=True)
class LoadOptions:
    """What the loaders of a server have in common."""

    threads: int = 1
    """Of one computation."""
    trusted: bool = False
    """Whether `.pt2` files, which may run code, are read."""
    module: str | None = None
    """FILE.py:FUNCTION that gives the torch module of versions without a program."""
    mapped: MappedPrograms | None = None
    """Where several processes share the weights of ONNX programs."""


class VersionSource(Protocol):
    """The contract: `poll` is quick, is called again and again, and returns what exists now."""

    name: str

    def poll(self) -> Mapping[int, ServableLoader]:
        """Loaders by version number; the same loader for the same version. UsageError: there can be none."""


class FileSource:
    """One file; when it changes it becomes the next version."""

    def __init__(self, name: str, path: Path, how: LoadOptions | None = None) -> None:
        self.name, self._path = name, path
        self._how = how or LoadOptions()
        self._stamp: tuple[int, int] | None = None
        self._number = 0
        self._loader: ServableLoader | None = None

    def poll(self) -> Mapping[int, ServableLoader]:
        try:
            status = self._path.stat()
        except OSError as error:
            if self._loader is not None:
                return {self._number: self._loader}  # it is in memory, and its file may be on its way back
            raise UsageError(f"cannot read {str(self._path)!r}: {error.strerror}") from None
        # Time and size, because a copy may keep the time, and an edit the size.
        if (stamp := (status.st_mtime_ns, status.st_size)) != self._stamp:
            self._loader = file_loader(self._path, self._how)
            self._stamp, self._number = stamp, self._number + 1
        assert self._loader is not None
        return {self._number: self._loader}


class FolderSource:
    """A folder of numbered versions. A version counts when its file is there: rename a finished folder into place."""

    def __init__(self, name: str, folder: Path, how: LoadOptions | None = None) -> None:
        self.name, self._folder = name, folder
        self._how = how or LoadOptions()
        self._loaders: dict[int, ServableLoader] = {}

    def poll(self) -> Mapping[int, ServableLoader]:
        found = {}
        for number, file in numbered_files(self._folder).items():
            # The same loader again, because it is what unloads what it has loaded.
            found[number] = self._loaders.get(number) or self._loader(file)
        self._loaders = found
        return found

    def _loader(self, file: Path) -> ServableLoader:
        return file_loader(file, self._how)


def numbered_files(folder: Path) -> dict[int, Path]:
    """The file of each version in a folder such as `digits/3/model.onnx`."""
    try:
        inner = [each for each in folder.iterdir() if each.name.isascii() and each.name.isdecimal()]
    except OSError as error:
        raise UsageError(f"cannot read {str(folder)!r}: {error.strerror}") from None
    found = {}
    for each in inner:
        files = (each / name for name in NAMES)
        file = next((file for file in files if file.is_file()), None)
        # Nine digits, as many as `version_number` takes in a request.
        if file is not None and len(each.name) < 10:
            found[int(each.name)] = file
    return found


class RegistrySource:
    """What a reference of the registry stands for: it changes when an alias is moved or a version is added.

    With a name alone or an alias, earlier versions are members of the stream too, so that one can roll back.
    """

    def __init__(self, name: str, ref: str, registry: Registry, how: LoadOptions | None = None) -> None:
        self.name, self._ref, self._registry = name, ref, registry
        self._parsed, self._how = ModelRef.parse(ref), how or LoadOptions()
        self._loaders: dict[int, ServableLoader] = {}
        self._seen = ""

    def poll(self) -> Mapping[int, ServableLoader]:
        newest = self._registry.find(self._ref)
        if newest is None:
            if self._loaders:
                return self._loaders  # a moment in which the alias stands for nothing
            newest = self._registry.get(self._ref)
        if newest.digest == self._seen:
            return self._loaders
        if self._parsed.version is not None:
            chosen = [newest]
        else:
            # Newer ones than the alias says are not tried yet.
            chosen = [each for each in self._registry.list(newest.name) if each.version <= newest.version]
        self._loaders = {each.version: self._loaders.get(each.version) or self._loader(each) for each in chosen}
        self._seen = newest.digest
        return self._loaders

    def _loader(self, version: ModelVersion) -> ServableLoader:
        return RegistryLoader(self._registry, version, self._how)


class RegistryLoader:
    """One version of a registry, which is held while it is loaded: nothing removes it meanwhile."""

    def __init__(self, registry: Registry, version: ModelVersion, how: LoadOptions) -> None:
        self._registry, self._version, self._how = registry, version, how
        self._inner: ServableLoader | None = None
        self._hold: VersionHold | None = None

    def estimate(self) -> int:
        return self._chosen().estimate()

    def load(self) -> Any:
        self._hold = self._registry.hold(self._version)
        try:
            return self._chosen().load()
        except BaseException:
            self._let_go()
            raise

    @contextmanager
    def program_file(self) -> Iterator[Path]:
        """The version stays held after the block, until `unload`."""
        inner = self._chosen()
        if not isinstance(inner, ProgramFileLoader):
            raise UsageError(f"{self._version.ref} is code of this machine, not a file; register it with a program")
        self._hold = self._registry.hold(self._version)
        try:
            with inner.program_file() as path:
                yield path
        except BaseException:
            self._let_go()
            raise

    def unload(self) -> None:
        self._chosen().unload()
        self._let_go()

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _chosen(self) -> ServableLoader:
        if self._inner is None:
            self._inner = self._choose()
        return self._inner

    def _choose(self) -> ServableLoader:
        registry, version = self._registry, self._version
        if self._how.module is not None:
            return ModuleLoader(*self._user_module(self._how.module), version.bytes)
        size = next((file.size for file in registry.manifest(version).files if file.name == PROGRAM), None)
        if size is None:
            raise UsageError(
                f"{version.ref} holds no program; give --module FILE.py:FUNCTION that returns its module, or register "
                "it with run.register(NAME, example=inputs)"
            )
        return OnnxLoader(lambda: registry.file(version, PROGRAM), size, self._how.threads, self._how.mapped)

    def _user_module(self, place: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        from shoal.models.exporting import load_module
        from shoal.models.loading import fill

        version = self._version
        return lambda: load_module(place), lambda module: fill(module, self._registry.tensors(version), version.ref)


def file_loader(path: Path, how: LoadOptions) -> ServableLoader:
    """A loader by the file's ending."""
    if path.suffix == ".onnx":
        return OnnxLoader(path, path.stat().st_size, how.threads, how.mapped)
    if path.suffix == ".pt2":
        return ProgramLoader(path, trusted=how.trusted)
    if path.suffix == ".json":
        return TableLoader(path)
    raise UsageError(
        f"{path.name!r} is not a model; serve {', '.join(ENDINGS)}, FILE.py:FUNCTION or a registry's model"
    )


class ObjectSource:
    """What FUNCTION of FILE.py returns: the user's own code, named by the user."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self._loaders = {1: ObjectLoader(lambda: call_function(place))}

    def poll(self) -> Mapping[int, ServableLoader]:
        return self._loaders


def call_function(place: str) -> object:
    """Call FUNCTION of FILE.py without arguments."""
    import importlib.util

    file, _, function = place.rpartition(":")
    spec = importlib.util.spec_from_file_location("shoal_served_module", file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise UsageError(f"{place!r} is not FILE.py:FUNCTION with a Python file that exists")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    make = getattr(loaded, function, None)
    if not callable(make):
        raise UsageError(f"{place!r}: {file} has no function {function!r}")
    return make()
