"""A worker forked by `shoal run`: from the fork to the end of the script.

Its own process group, so that the launcher can end it with everything it started; dies with the launcher; standard
output and error go to pipes; an exception is reported once, as text, and never comes back into the launcher's stack.
"""

import atexit
import ctypes
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import msgspec
import torch

from shoal.core.errors import PeerLost

_PR_SET_PDEATHSIG = 1


class Report(msgspec.Struct, frozen=True):
    """Why a worker ends otherwise than well."""

    error: str
    """One line: the exception's type and message."""
    traceback: str
    peer: bool = False
    """The cause lies in another worker."""


@dataclass(frozen=True)
class Pipes:
    """Write ends a worker holds."""

    out: int
    err: int
    report: int


def become_worker(
    pipes: Pipes, parent: int, threads: int | None, enter: Callable[[], object], script: Path, arguments: list[str]
) -> NoReturn:
    """Turn this freshly forked process into a worker, run the script, and never return."""
    code = 1
    try:
        _settle(pipes, parent, threads)
        enter()
        code = _run(script, arguments, pipes.report)
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        sys.last_value = error  # as the interpreter does: the record's last line says how it ended
        _report(pipes.report, error, script)
    finally:
        _leave(code)


def _settle(pipes: Pipes, parent: int, threads: int | None) -> None:
    os.setpgid(0, 0)
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    atexit._clear()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(pipes.out, 1)
    os.dup2(pipes.err, 2)
    sys.stdin = open(0, closefd=False)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), "utf-8", line_buffering=True)
    if threads is not None:
        torch.set_num_threads(threads)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _run(script: Path, arguments: list[str], report: int) -> int:
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.absolute().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if stop.code in (None, 0):
            return 0
        text = f"the script called sys.exit({stop.code!r})"
        _send(report, Report(text, f"{text}\n"))
        return 1
    return 0


def _report(report: int, error: BaseException, script: Path) -> None:
    lines = traceback.format_exception(type(error), error, _from(error.__traceback__, script))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    _send(report, Report(summary, "".join(lines), isinstance(error, PeerLost)))


def _from(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """The traceback from the script's own first frame on: the reader wants their code, not our launcher."""
    here = trace
    while here is not None:
        if here.tb_frame.f_code.co_filename == str(script):
            return here
        here = here.tb_next
    return trace


def _send(report: int, what: Report) -> None:
    data = msgspec.json.encode(what)
    while data:
        data = data[os.write(report, data) :]


def _leave(code: int) -> NoReturn:
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # non-daemon threads of the script end first
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
