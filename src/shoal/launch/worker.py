"""A worker forked by `shoal run`, from the fork to the end of the script, which runs as `python FILE ARGS` would."""

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
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

import msgspec
import torch

from shoal.core.errors import Evicted, PeerLost, Quarantined, RunEnded, ShoalError
from shoal.core.signals import as_python_has_them


def run_script(script: Path, arguments: list[str]) -> None:
    """Run `script` in this process; its exceptions, SystemExit included, come through."""
    path = str(script.absolute())
    sys.argv = [str(script), *arguments]
    # as `python FILE` does, unless it is told not to (-P)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    loader = _ScriptLoader("__main__", path)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    loader.exec_module(main)


class _ScriptLoader(SourceFileLoader):
    """Reads the source every time: a script, unlike a module, leaves no compiled file behind."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


LONGEST_TEXT = 1 << 16
"""Letters of a traceback or a message that are passed on."""
_PR_SET_PDEATHSIG = 1


class FailureReport(msgspec.Struct, frozen=True):
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
class WorkerPipes:
    """Write ends a worker holds."""

    out: int
    err: int
    report: int


def become_worker(
    pipes: WorkerPipes,
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


def _settle(pipes: WorkerPipes, parent: int, threads: int | None) -> None:
    # a group of its own: its loader processes end with it, and a Ctrl-C of the terminal reaches the launcher alone
    os.setpgid(0, 0)
    _die_with(parent)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # the terminal's input is the launcher's
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
        _send(report, FailureReport(f"the script called sys.exit({stop.code!r})", ""))
        return 1
    return 0


def _last_words(error: BaseException) -> None:
    """From here on this worker ends by itself, and the record's last line says how."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.last_value = error  # as the interpreter does


def _report(report: int, error: BaseException, path: str) -> None:
    lines = traceback.format_exception(type(error), error, _from(error, path))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()
    # in these cases another worker, or the user, is the cause
    asked = isinstance(error, PeerLost | KeyboardInterrupt)
    evicted = isinstance(error, Evicted)
    reason = error.reason if isinstance(error, Quarantined) else ""
    ended = error.well if isinstance(error, RunEnded) else None
    _send(report, FailureReport(_clean(summary), _clean("".join(lines)), asked, evicted, _clean(reason), ended))


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


def _send(report: int, what: FailureReport) -> None:
    data = msgspec.json.encode(what)
    while data:
        # a pipe takes what it has room for
        data = data[os.write(report, data) :]


def _leave(code: int) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading._shutdown()  # type: ignore[attr-defined]  # non-daemon threads of the script end first
        # os._exit leaves them out
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # not sys.exit: the launcher's frames lie below, with exit handlers and buffers of its own
        os._exit(code)
