"""Compiled inner loops of the codecs: plain functions over numpy arrays, compiled by numba when first asked for.

    kernels.get("pack_signs")       the compiled function, or the plain one if numba is not there
    kernels.fast()                  whether codecs should use them; otherwise they take their torch reference
    kernels.warm()                  compile all (`python -m shoal.wire.kernels`)

Compiled code is kept on disk, in $NUMBA_CACHE_DIR or the user's cache folder; where neither can be written it is
compiled in every process. One thread each, without the interpreter's lock. SIGNATURES are all that is compiled; what
kernels are made of (inline.py, flags.py, ranks.py) is put into each.
"""

import hashlib
import importlib
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

MODULES = ("blocks", "levels", "select", "bits", "elias", "rice", "half")
INLINED = ("inline", "flags", "ranks")

_slow = False


@cache
def _numba() -> Any:
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


def fast() -> bool:
    """Whether compiled kernels are to be used."""
    return not _slow and _numba() is not None


@contextmanager
def reference() -> Iterator[None]:
    """Inside, codecs take their torch reference: the oracle of the kernels' tests."""
    global _slow
    before, _slow = _slow, True
    try:
        yield
    finally:
        _slow = before


@cache
def get(name: str) -> Callable[..., Any]:
    """The kernel called `name`, compiled if that is possible."""
    for module_name in MODULES:
        module = importlib.import_module(f"shoal.wire.kernels.{module_name}")
        if name in module.SIGNATURES:
            function: Callable[..., Any] = getattr(module, name)
            numba = _numba()
            return function if numba is None else _compile(numba, function, *module.SIGNATURES[name])
    raise KeyError(name)


def warm() -> list[str]:
    """Compile every kernel; returns their names."""
    names = [n for m in MODULES for n in importlib.import_module(f"shoal.wire.kernels.{m}").SIGNATURES]
    names = [name for name in names if halves() or not name.endswith("fp16")]
    for name in names:
        get(name)
    return names


def _compile(numba: Any, function: Callable[..., Any], signature: str, relaxed: bool) -> Callable[..., Any]:
    # reassociation alone: sums may be vectorised, NaN and infinity still mean what they mean
    options = {"nogil": True, "fastmath": {"reassoc"} if relaxed else False}
    function = types.FunctionType(function.__code__, {**function.__globals__, **_inlined(numba)})
    folder = _cache_folder()
    if folder is None:
        compiled: Callable[..., Any] = numba.njit(signature, cache=False, **options)(function)
        return compiled
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # for our functions only: the script's own keep their place
    try:
        compiled = numba.njit(signature, cache=True, **options)(function)
    finally:
        numba.config.CACHE_DIR = before
    return compiled


def _inlined(numba: Any) -> dict[str, Any]:
    """What kernels share, as the compiler wants it."""
    shared: dict[str, Any] = {}
    for name in INLINED:
        module = importlib.import_module(f"shoal.wire.kernels.{name}")
        for piece in [getattr(module, each) for each in module.NAMES]:
            function = types.FunctionType(piece.__code__, {**piece.__globals__, **shared})
            shared[piece.__name__] = numba.njit(function, inline="always")
    machine = importlib.import_module("shoal.wire.kernels.instructions")
    names = importlib.import_module("shoal.wire.kernels.inline").CONVERSIONS
    return shared | {name: getattr(machine, name) for name in names}


@cache
def halves() -> bool:
    """Whether there are kernels for fp16 here."""
    return bool(_numba() is None or importlib.import_module("shoal.wire.kernels.instructions").halves())


def _digest() -> str:
    """Of all sources: what is kept of other ones is never mistaken for these, for kernels share pieces."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _cache_folder() -> Path | None:
    """Where compiled code of these sources is kept, if it can be written."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".cache"
        folder = base / "shoal" / "kernels" / _digest()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # no home, or a read-only one
        return None
