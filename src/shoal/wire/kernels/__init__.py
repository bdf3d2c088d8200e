"""Compiled inner loops of the codecs: plain functions over numpy arrays, compiled by numba when first asked for.

    kernels.get("pack_signs")       the compiled function, or the plain one if numba is not there
    kernels.fast()                  whether codecs should use them; otherwise they take their torch reference
    kernels.warm(names, "fp16")     compile these before workers are forked, which then share them
    kernels.warm()                  compile all (`python -m shoal.wire.kernels`)

Compiled code is kept on disk (kernel_cache.py); where it cannot be, it is compiled in every process. One line says that
kernels are being compiled. One thread each, without the interpreter's lock. SIGNATURES are all that is compiled; what
kernels are made of (inline.py, flags.py, ranks.py) is put into each.
"""

import importlib
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from shoal.wire.kernels.kernel_cache import cache_folder, one_at_a_time
from shoal.wire.kernels.progress import announced, announcing

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
    """Return whether compiled kernels are used."""
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


def names() -> list[str]:
    """Return the names of all kernels available on this machine."""
    found = [name for m in MODULES for name in importlib.import_module(f"shoal.wire.kernels.{m}").SIGNATURES]
    return [name for name in found if halves() or not name.endswith("fp16")]


def warm(wanted: Iterable[str] | None = None, purpose: str = "") -> list[str]:
    """Compile these kernels, or all; returns their names. `purpose`, a plan perhaps, is for the line that says so."""
    wanted = None if wanted is None else set(wanted)
    if wanted is not None and not wanted:
        return []  # a run without a codec: importing numba would take half a second
    chosen = [name for name in names() if wanted is None or name in wanted]
    if _numba() is not None and chosen:
        cache_folder()  # now, so that forked workers know it, and do not say once more what is wrong with it
    for number, name in enumerate(chosen):
        left = len(chosen) - number
        with announcing(f"{left} kernel{'s' * (left > 1)}{f' for {purpose}' if purpose else ''}"):
            get(name)
    return chosen


def _compile(numba: Any, function: Callable[..., Any], signature: str, relaxed: bool) -> Callable[..., Any]:
    # reassociation alone: sums may be vectorised, NaN and infinity still mean what they mean
    # nogil: the communication thread sends while a kernel runs.
    options = {"nogil": True, "fastmath": {"reassoc"} if relaxed else False}
    # A copy with other globals: the plain function stays what tests compare the compiled one with.
    function = types.FunctionType(function.__code__, {**function.__globals__, **_inlined(numba)})
    folder = cache_folder()
    with announced(kept=folder is not None):
        if folder is None:
            compiled: Callable[..., Any] = numba.njit(signature, cache=False, **options)(function)
            return compiled
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)  # for our functions only: the script's own keep their place
        try:
            with one_at_a_time(folder):
                compiled = numba.njit(signature, cache=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = before
        return compiled


def _inlined(numba: Any) -> dict[str, Any]:
    """The compiler options that all kernels share."""
    shared: dict[str, Any] = {}
    for name in INLINED:
        module = importlib.import_module(f"shoal.wire.kernels.{name}")
        for piece in [getattr(module, each) for each in module.NAMES]:
            function = types.FunctionType(piece.__code__, {**piece.__globals__, **shared})
            # In the order of NAMES, because a piece may use those before it.
            shared[piece.__name__] = numba.njit(function, inline="always")
    machine = importlib.import_module("shoal.wire.kernels.instructions")
    names = importlib.import_module("shoal.wire.kernels.inline").CONVERSIONS
    return shared | {name: getattr(machine, name) for name in names}


@cache
def halves() -> bool:
    """Return whether there are fp16 kernels for this processor."""
    return bool(_numba() is None or importlib.import_module("shoal.wire.kernels.instructions").halves())
