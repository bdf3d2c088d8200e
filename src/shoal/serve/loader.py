"""Loaders: how one version of a servable comes into memory and leaves it, and how much it will take.

The manager asks for the estimate before it loads, and decides by it. The loader that loaded a servable also unloads it.
"""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from shoal.serve.servable import LookupTable, ObjectServable, Servable

TABLE_LIMIT = 64 << 20
"""Bytes of a lookup table's file at most."""


class ServableLoader(Protocol):
    """The contract: `load` may be called again after `unload`; both run outside the event loop."""

    def estimate(self) -> int:
        """Bytes of memory the servable will take; cheap, before anything is loaded."""

    def load(self) -> Servable:
        """The servable, ready to be asked. LoadRefused, UsageError or what the model's library raises."""

    def unload(self) -> None:
        """Give back the memory; the manager has dropped the servable, and no request uses it any more."""


@runtime_checkable
class ProgramFileLoader(Protocol):
    """A loader whose servable is data in a file, which can be loaded on another machine as well."""

    def program_file(self) -> AbstractContextManager[Path]:
        """The file, whose ending says what it is, as long as the block runs; `unload` comes after it as after `load`.

        UsageError where this version is not such a file.
        """


class ObjectLoader:
    """Makes a servable by calling a function: for Python objects, and for tests."""

    def __init__(self, make: Callable[[], object], size: int = 0) -> None:
        self._make, self._size = make, size

    def estimate(self) -> int:
        return self._size

    def load(self) -> Servable:
        made = self._make()
        # One of our own kinds takes a dict of arrays; an object of the user gets the array itself.
        ours = type(made).__module__.startswith("shoal.")
        return made if ours and isinstance(made, Servable) else ObjectServable(made)

    def unload(self) -> None:
        release_memory()


class TableLoader:
    """A lookup table from a JSON file: an object of rows of numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def estimate(self) -> int:
        # a row of numbers as text is about as long as its float32 and its key with their entry in a dict
        return self._path.stat().st_size

    def load(self) -> Servable:
        import msgspec

        from shoal.serve.errors import LoadRefused, RequestError

        if (size := self._path.stat().st_size) > TABLE_LIMIT:
            raise LoadRefused(f"{self._path.name} has {size} bytes; a lookup table may have {TABLE_LIMIT}")
        try:
            return LookupTable(msgspec.json.decode(self._path.read_bytes(), type=dict[str, list[float]]))
        except (msgspec.DecodeError, RequestError) as error:
            raise LoadRefused(f"{self._path.name} is no lookup table: {error}; write {{'key': [1.0, 2.0]}}") from None

    @contextmanager
    def program_file(self) -> Iterator[Path]:
        yield self._path

    def unload(self) -> None:
        release_memory()


def release_memory() -> None:
    """Give freed memory back to the system now: the budget counts what is resident, not what Python has let go."""
    gc.collect()
    # Only glibc has it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
