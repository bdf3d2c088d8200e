"""A worker forked by `shoal run`: from the fork to the end of the script.

Its own process group, so that the launcher can end it with everything it started; dies with the launcher; standard
output and error go to pipes; an exception is reported once, as text, and never comes back into the launcher's stack.
"""

import atexit
import ctypes
import gc
import io
import os
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

from shoal.cluster.launch.script import run_script
from shoal.cluster.launch.signals import as_python_has_them
from shoal.core.errors import Evicted, PeerLost, Quarantined, RunEnded, ShoalError

LONGEST_TEXT = 1 << 16
"""Letters of a traceback or a message that are passed on."""
_PR_SET_PDEATHSIG = 1


class Report(msgspec.Struct, frozen=True):
    """Why a worker ends otherwise than well."""

    error: str
    """One line: the exception's type and message."""
    traceback: str
    peer: bool = False
    """The cause lies in another worker."""
    evicted: bool = False
    """The others go on without it."""
    quarantined: str = ""
    """They do, and it is not started again, for this reason."""
    ended: bool | None = None
    """There is no run any more; whether it came to its end."""


@dataclass(frozen=True)
class Pipes:
    """Write ends a worker holds."""

    out: int
    err: int
    report: int


def become_worker(
    pipes: Pipes,
    parent: int,
    threads: int | None,
    enter: Callable[[], object],
    script: Path,
    arguments: list[str],
) -> NoReturn:
    """Turn this freshly forked process into a worker, run the script, and never return."""
    code, path = 1, str(script.absolute())  # now: the script may change its directory
    try:
        _settle(pipes, parent, threads)
        enter()
        code = _run(script, arguments, pipes.report)
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        _last_words(error)
        _report(pipes.report, error, path)
    finally:
        _leave(code)


def _settle(pipes: Pipes, parent: int, threads: int | None) -> None:
    os.setpgid(0, 0)
    _die_with(parent)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(pipes.out, 1)
    os.dup2(pipes.err, 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (for the rest of the process)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
    if threads is not None:
        torch.set_num_threads(threads)
    as_python_has_them()
    # what was imported before the fork is no garbage: to look through it takes 50 ms, whenever state is collected, and
    # touches memory that all workers share
    gc.freeze()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _run(script: Path, arguments: list[str], report: int) -> int:
    try:
        run_script(script, arguments)
    except SystemExit as stop:
        if stop.code in (None, 0):
            return 0
        _last_words(stop)
        if not isinstance(stop.code, int):
            sys.stderr.write(f"{stop.code}\n")
        _send(report, Report(f"the script called sys.exit({stop.code!r})", ""))
        return 1
    return 0


def _last_words(error: BaseException) -> None:
    """From here on this worker ends by itself, and the record's last line says how."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.last_value = error  # as the interpreter does


def _report(report: int, error: BaseException, path: str) -> None:
    lines = traceback.format_exception(type(error), error, _from(error, path))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    asked = isinstance(error, PeerLost | KeyboardInterrupt)
    evicted = isinstance(error, Evicted)
    reason = error.reason if isinstance(error, Quarantined) else ""
    ended = error.well if isinstance(error, RunEnded) else None
    _send(report, Report(_clean(summary), _clean("".join(lines)), asked, evicted, _clean(reason), ended))


def _from(error: BaseException, path: str) -> TracebackType | None:
    """The traceback from the script's own first frame on: the reader wants their code, not our launcher."""
    here = error.__traceback__
    while here is not None:
        if here.tb_frame.f_code.co_filename == path:
            return here
        here = here.tb_next
    return None if isinstance(error, SyntaxError | ShoalError) else error.__traceback__


def _clean(text: str) -> str:
    """Text that can be sent: of bearable length, and without halves of letters (from undecodable file names)."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]} [...] {text[-LONGEST_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _send(report: int, what: Report) -> None:
    data = msgspec.json.encode(what)
    while data:
        data = data[os.write(report, data) :]


def _leave(code: int) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading._shutdown()  # type: ignore[attr-defined]  # non-daemon threads of the script end first
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
