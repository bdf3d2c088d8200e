"""One line when a process begins to compile kernels: it takes seconds, in which nothing else is shown."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_what = "kernels"
_said = False


@contextmanager
def announcing(what: str) -> Iterator[None]:
    """Inside, the line says that `what` is compiled."""
    global _what
    before, _what = _what, what
    try:
        yield
    finally:
        _what = before


@contextmanager
def announced(kept: bool) -> Iterator[None]:
    """Inside, a compilation by numba is said, once a process; what comes from the disk is not compiled.

    `kept`: whether this is the last time on this machine.
    """
    if _said:
        yield
        return
    events: Any = importlib.import_module("numba.core.event")
    with events.install_listener("numba:compile", _listener(events, kept)):
        yield


def _listener(events: Any, kept: bool) -> Any:
    class CompileListener(events.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            _say(kept)

        def on_end(self, event: Any) -> None:
            pass

    return CompileListener()


def _say(kept: bool) -> None:
    global _said
    if not _said:
        _said = True
        sys.stderr.write(f"shoal: compiling {_what} ({'once on this machine' if kept else 'not kept'}) …\n")
        sys.stderr.flush()
