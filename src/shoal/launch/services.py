"""Processes that serve the workers of a run beside them: forked before the workers, ended after them.

A service runs no code of the user's. The run cannot go on without one: when it dies, everybody is stopped, and the run
begins again at its last checkpoint, with new services.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shoal.core.signals import held_back

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RunService:
    """One process: its name in messages, and what it does at the address it is given."""

    name: str
    serve: Callable[[str], None]


class ServiceProcesses:
    """Of one launcher, which starts no thread."""

    def __init__(self, services: tuple[RunService, ...]) -> None:
        self.services = services
        self._folder: Path | None = None
        self._pids: dict[int, RunService] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where workers reach them: files in a folder of this user's alone."""
        return tuple(f"ipc://{self._folder}/{number}" for number in range(len(self.services))) if self._folder else ()

    def open(self) -> None:
        if not self.services:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-servers-"))
        for service, address in zip(self.services, self.addresses, strict=True):
            parent = os.getpid()
            with held_back():  # an interrupt between the fork and the note of it would lose the process
                pid = os.fork()
                if pid == 0:
                    _become(service, address, parent)
                self._pids[pid] = service

    def find_dead(self) -> tuple[str, int] | None:
        """Return the name of a service that has ended, and the signal it died of (0: none); None if all live."""
        for pid, service in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._pids[pid]
                return service.name, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return None

    def close(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._pids.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _become(service: RunService, address: str, parent: int) -> NoReturn:
    """In the new process."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the launcher, which ends this one last
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        folder = Path(address.removeprefix("ipc://")).parent
        signal.signal(signal.SIGTERM, lambda *_: _leave(folder))
        if sys.platform == "linux":  # a launcher that is killed leaves nothing behind
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        Path(f"{address.removeprefix('ipc://')}.pid").write_text(str(os.getpid()))
        if os.getppid() == parent:
            service.serve(address)
            code = 0
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        sys.stderr.write(f"shoal: {service.name} failed: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def _leave(folder: Path) -> NoReturn:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
