"""Processes that serve the workers of a run beside them: forked before the workers, ended after them.

A service runs no code of the user's. The run cannot go on without one: when it dies, everybody is stopped, and the run
begins again at its last checkpoint, with new services. On one host it listens at a file in a folder of the user's
alone; between hosts under a key of its own, and its launcher tells it who may connect.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from shoal.core.errors import ShoalError
from shoal.core.signals import held_back
from shoal.launch.service_channel import MemberAccused, ServiceChannel, ServiceReady, ServiceView
from shoal.transport.endpoint import BookEntry
from shoal.transport.keys import CurveKeyPair

_PR_SET_PDEATHSIG = 1
READY = 20.0
"""Seconds in which a service must listen."""


@dataclass(frozen=True)
class ServiceSeat:
    """Where a service listens; what its process is given."""

    name: str
    number: int
    address: str
    """`ipc://FILE`, or `tcp://HOST:*` under keys."""
    run: str = ""
    keys: CurveKeyPair | None = None
    enter: Callable[[], object] = lambda: None
    """In its process: go there."""
    channel: ServiceChannel | None = None
    """To its launcher, where it listens under keys."""


SeatMaker = Callable[[int, Path], ServiceSeat]
"""(number, a folder of the user's alone)"""


def seat_at_file(number: int, folder: Path) -> ServiceSeat:
    """On this host, for this user's workers."""
    return ServiceSeat(f"server {number}", number, f"ipc://{folder}/{number}")


@dataclass(frozen=True)
class RunService:
    """One process: its name in messages, and what it does where it is put."""

    name: str
    serve: Callable[[ServiceSeat], None]


class ServiceProcesses:
    """Of one launcher, which starts no thread."""

    def __init__(self, services: tuple[RunService, ...]) -> None:
        self.services = services
        self._folder: Path | None = None
        self._pids: dict[int, RunService] = {}
        self._seats: list[ServiceSeat] = []
        self._channels: list[ServiceChannel] = []
        self._told = 0
        self.book: tuple[BookEntry, ...] = ()
        """Where workers of several hosts reach them."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where workers of this host reach them: files in a folder of this user's alone."""
        return tuple(seat.address for seat in self._seats if seat.keys is None)

    def open(self, make_seat: SeatMaker = seat_at_file) -> None:
        if not self.services:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-servers-"))
        for number, service in enumerate(self.services):
            seat = make_seat(number, self._folder)
            self._seats.append(seat)
            self._fork(service, seat)
        self.book = tuple(self._await(*each) for each in zip(self._seats, self._channels, strict=False))

    def _fork(self, service: RunService, seat: ServiceSeat) -> None:
        own, theirs = ServiceChannel.pair() if seat.keys is not None else (None, None)
        parent = os.getpid()
        with held_back():  # an interrupt between the fork and the note of it would lose the process
            pid = os.fork()
            if pid == 0:
                for channel in (*self._channels, own):
                    if channel is not None:
                        channel.close()
                assert self._folder is not None
                _become(service, replace(seat, channel=theirs), self._folder, parent)
            self._pids[pid] = service
        if own is not None and theirs is not None:
            theirs.close()
            self._channels.append(own)

    def _await(self, seat: ServiceSeat, channel: ServiceChannel) -> BookEntry:
        word = channel.hear(READY)
        if not isinstance(word, ServiceReady) or seat.keys is None:
            raise ShoalError(f"{seat.name} does not listen at {seat.address} after {READY:.0f} s, or has ended")
        return BookEntry(word.address, seat.keys.public, "", seat.name)

    def tell(self, view: ServiceView) -> None:
        """Let the members of the newest view connect, and nobody else; said again until it was taken in."""
        is_newer, self._told = view.generation > self._told, max(view.generation, self._told)
        for channel in self._channels:
            channel.tell(view if is_newer else None)

    def take_accused(self) -> list[MemberAccused]:
        """Members that have broken the protocol, since the last call."""
        words = [word for channel in self._channels if not channel.over and (word := channel.hear()) is not None]
        return [word for word in words if isinstance(word, MemberAccused)]

    def forget(self) -> None:
        """In a worker: the channels are the launcher's."""
        for channel in self._channels:
            channel.close()
        self._channels = []

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
        self.forget()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _become(service: RunService, seat: ServiceSeat, folder: Path, parent: int) -> NoReturn:
    """In the new process."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the launcher, which ends this one last
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: _leave(folder))
        if sys.platform == "linux":  # a launcher that is killed leaves nothing behind
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        (folder / f"{seat.number}.pid").write_text(str(os.getpid()))
        if os.getppid() == parent:
            seat.enter()
            service.serve(seat)
            code = 0
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        sys.stderr.write(f"shoal: {service.name} failed: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def _leave(folder: Path) -> NoReturn:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
