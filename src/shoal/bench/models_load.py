"""Finds the models to measure: a folder with a table in it, which is the user's own code and no part of Shoal.

`examples/models` is such a folder. Its `__init__.py` holds `TABLE`, name -> entry, and an entry is anything with the
attributes below. It is loaded by its path, with the folder above it on the import path meanwhile, as a script there
would have it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from shoal.core.errors import UsageError


class ModelEntry(Protocol):
    """One model: how it is made, fed and trained. A batch is `[*inputs, target]`."""

    @property
    def make(self) -> Callable[..., nn.Module]: ...
    @property
    def data(self) -> Callable[[str, int | None, Path | None], Dataset[Any]]:
        """("train" or "test", at most so many samples, folder of real data or None for synthetic)."""

    @property
    def kind(self) -> str:
        """ "classifier" has an accuracy: the last dimension of its answer are the classes."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that a folder of real data must hold; empty if there is only synthetic data."""

    def optimizers(self, model: nn.Module) -> list[Optimizer]: ...
    def step(self, model: nn.Module, optimizers: list[Optimizer], batch: list[Tensor]) -> Tensor: ...


Table = Mapping[str, ModelEntry]


def load_table(folder: Path) -> Table:
    """The table of `folder`; runs its code."""
    path = folder.resolve() / "__init__.py"
    if not path.is_file():
        raise UsageError(f"no {path}, which should hold the table of models; give its folder: --from DIR")
    table = getattr(_load(path), "TABLE", None)
    if not isinstance(table, Mapping):
        raise UsageError(f"{path} has no TABLE of models (name -> entry); see examples/models for one")
    return table


def choose(table: Table, names: str | None) -> Table:
    """Of `table` those in `names`, separated by commas; all without."""
    if names is None:
        return table
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in table:
            raise UsageError(f"no model {name!r}; there are {', '.join(table)}")
    return {name: table[name] for name in wanted}


def real_data(entry: ModelEntry, folder: Path | None) -> Path | None:
    """`folder`, if it holds what this model learns from."""
    found = folder is not None and entry.files and all((folder / name).is_file() for name in entry.files)
    return folder if found else None


def _load(path: Path) -> Any:
    name = f"models_{crc32(bytes(path)):08x}"  # its own name: `models` may be another folder's
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # its files import each other by it
    try:
        with _on_path(path.parents[1]):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
