"""Processes that serve the workers of a run beside them: forked before the workers, or before a switch to their plan.

A service runs no code of the user's. The run cannot go on without one: when it dies, everybody is stopped, and the run
begins again at its last checkpoint, with new services, unless the service has a replica (`service_replicas.py`). On one
host it listens at a file in a folder of the user's alone; between hosts under a key of its own, and its launcher tells
it who may connect.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError
from shoal.core.signals import STOPPING, held_back
from shoal.hosts.status_board import StatusBoard
from shoal.launch.service_channel import MemberAccused, ReplicaPartner, ServiceChannel, ServiceReady, ServiceView
from shoal.launch.service_folder import ServiceFolder, service_file
from shoal.launch.service_replicas import ReplicaSeat, ReplicaStarter, ServiceReplicas
from shoal.transport.endpoint import BookEntry
from shoal.transport.keys import CurveKeyPair

_PR_SET_PDEATHSIG = 1
READY = 20.0
"""Seconds in which a service must listen."""
REPLACEMENTS = 3


@dataclass(frozen=True)
class ServiceSeat:
    """Where a service listens; what its process is given."""

    number: int
    address: str
    """`ipc://FILE`, or `tcp://HOST:*` under keys."""
    run: str = ""
    keys: CurveKeyPair | None = None
    enter: Callable[[], object] = lambda: None
    """In its process: go there."""
    channel: ServiceChannel | None = None
    """To its launcher, where it listens under keys or has a replica."""
    replica: ReplicaSeat | None = None

    @property
    def name(self) -> str:
        return f"server {self.number}"


SeatMaker = Callable[[int, str], ServiceSeat]
"""(number, a file of its own in a folder of the user's alone)"""


def seat_at_file(number: int, file: str) -> ServiceSeat:
    """On this host, for this user's workers."""
    return ServiceSeat(number, f"ipc://{file}")


@dataclass(frozen=True)
class RunService:
    """One process: its name in messages, and what it does where it is put."""

    name: str
    serve: Callable[[ServiceSeat], None]
    replicas: int = 1
    """Processes that have its state at a time: 1 or 2."""


class ServiceProcesses:
    """Of one plan of a launcher, which starts no thread."""

    def __init__(
        self,
        services: tuple[RunService, ...],
        replacements: int = REPLACEMENTS,
        leave: Callable[[], object] = lambda: None,
        folder: ServiceFolder | None = None,
        plan: int = 0,
    ) -> None:
        """`replacements`: processes of each service with a replica that may be started again. `leave`: called in a new
        process, to close what is the launcher's alone. `folder`: one that others use too; `plan`: the number of the
        services' plan, in it."""
        self.services, self._replacements, self._leave = services, replacements, leave
        self._replicated: list[ServiceReplicas] = []
        self.folder, self._plan, self._is_shared = folder or ServiceFolder(), plan, folder is not None
        self._pids: dict[int, RunService] = {}
        self._seats: list[ServiceSeat] = []
        self._backups: list[ServiceSeat] = []
        """Where the second process of each service is, if it has one."""
        self._channels: list[ServiceChannel] = []
        self._told = 0
        self.book: tuple[BookEntry, ...] = ()
        """Where workers of several hosts reach them."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where workers of this host reach them: files in a folder of this user's alone."""
        return tuple(seat.address for seat in self._seats if seat.keys is None)

    def open(self, make_seat: SeatMaker = seat_at_file) -> None:
        self.begin(make_seat)
        if any(seat.keys is not None for seat in self._backups):
            self.book = self._introduce_replicas()
        for each in self._replicated:
            each.await_ready(Deadline.after(READY))
        self.book += tuple(self._await(*each) for each in zip(self._seats, self._channels, strict=False))

    def begin(self, make_seat: SeatMaker = seat_at_file) -> None:
        """Start the processes, and wait for none of them; see `is_ready`."""
        if not self.services:
            return
        self._deadline = Deadline.after(READY)
        self.folder.open()
        for number, service in enumerate(self.services):
            seat = make_seat(number, service_file(self.folder.path, self._plan, number))
            self._seats.append(seat)
            if service.replicas == 1:
                self._fork(service, seat)
                continue
            again = self._replacements
            self._backups.append(seat)
            if seat.keys is not None:  # workers elsewhere know both by their keys from the beginning, and no third
                again, place = 0, len(self.services) + number
                # where the next server is: on another host, if servers are on several
                near = make_seat(number + 1, service_file(self.folder.path, self._plan, place))
                self._backups[-1] = replace(near, number=place)
            starter = self._starter(service, seat, self._backups[-1])
            self._replicated.append(ServiceReplicas(number, service.name, again, starter))
            self._replicated[-1].begin()

    def is_ready(self) -> bool:
        """Return whether all listen at their files. ShoalError: they have taken too long."""
        files = [Path(seat.address.removeprefix("ipc://")) for seat in self._seats]
        ready = all(file.is_socket() for file in files) and all(each.is_ready() for each in self._replicated)
        if not ready and self._deadline.expired:
            raise ShoalError(f"{len(files)} servers were not ready within {READY:.0f} s")
        return ready

    def _fork(self, service: RunService, seat: ServiceSeat) -> None:
        pid, channel = self._fork_one(service, seat, wants_channel=seat.keys is not None)
        self._pids[pid] = service
        if channel is not None:
            self._channels.append(channel)

    def _fork_one(
        self, service: RunService, seat: ServiceSeat, wants_channel: bool
    ) -> tuple[int, ServiceChannel | None]:
        own, theirs = ServiceChannel.pair() if wants_channel else (None, None)
        parent = os.getpid()
        with held_back():  # an interrupt between the fork and the note of it would lose the process
            pid = os.fork()
            if pid == 0:
                self.forget()
                if own is not None:
                    own.close()
                file = service_file(self.folder.path, self._plan, seat.number)
                _become(service, replace(seat, channel=theirs), file, parent, self._leave)
        if theirs is not None:
            theirs.close()
        return pid, own

    def _introduce_replicas(self) -> tuple[BookEntry, ...]:
        """Tell primaries and backups of each other; return where workers reach them, first all primaries."""
        deadline, entries = Deadline.after(READY), dict[int, BookEntry]()
        for each, *seats in zip(self._replicated, self._seats, self._backups, strict=True):
            partners = []
            for seat, address in zip(seats, each.await_addresses(deadline), strict=True):
                assert seat.keys is not None
                entries[seat.number] = BookEntry(address, seat.keys.public, "", seat.name)
                partners.append(ReplicaPartner(seat.name, address, seat.keys.public.decode()))
            each.introduce(partners)
        return tuple(entries[number] for number in sorted(entries))

    def _starter(self, service: RunService, seat: ServiceSeat, backup: ServiceSeat) -> ReplicaStarter:
        def start(replica: ReplicaSeat) -> tuple[int, ServiceChannel]:
            where = seat if replica.backs is None else backup
            pid, channel = self._fork_one(service, replace(where, replica=replica), wants_channel=True)
            assert channel is not None
            return pid, channel

        return start

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
        for each in self._replicated:
            each.tell(view if is_newer else None)

    def take_accused(self) -> list[MemberAccused]:
        """Members that have broken the protocol, since the last call."""
        words = [word for channel in self._channels if not channel.over and (word := channel.hear()) is not None]
        accused = [word for word in words if isinstance(word, MemberAccused)]
        return accused + [word for each in self._replicated for word in each.take_accused()]

    def forget(self) -> None:
        """In another process: the channels are the launcher's."""
        for channel in self._channels:
            channel.close()
        self._channels = []
        for each in self._replicated:
            each.forget()

    def tick(self, board: StatusBoard) -> list[str]:
        """Several times a second: let replicas take over from processes that have ended; returns a line for each."""
        notes = []
        for each in self._replicated:
            notes += each.tick()
            board.set_server_term(each.number, each.term)
        return notes

    def find_dead(self) -> tuple[str, int] | None:
        """Return the name of a service that has ended, and the signal it died of (0: none); None if all live."""
        for pid, service in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._pids[pid]
                return service.name, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return next((each.lost for each in self._replicated if each.lost is not None), None)

    def close(self) -> None:
        for each in self._replicated:
            each.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._pids.clear()
        self.forget()
        if self._is_shared:
            self.folder.clear(self._plan)
        else:
            self.folder.close()


def _become(service: RunService, seat: ServiceSeat, file: str, parent: int, leave: Callable[[], object]) -> NoReturn:
    """In the new process."""
    code = 1
    try:
        leave()
        os.setpgid(0, 0)  # Ctrl-C is for the launcher, which ends this one last
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: _leave(Path(file).parent, parent))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        if sys.platform == "linux":  # a launcher that is killed leaves nothing behind
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        start = "" if seat.replica is None else f".{seat.replica.start}"
        Path(f"{file}{start}.pid").write_text(str(os.getpid()))
        # else the launcher died before prctl was called
        if os.getppid() == parent:
            seat.enter()
            service.serve(seat)
            code = 0
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        sys.stderr.write(f"shoal: {service.name} failed: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def _leave(folder: Path, parent: int) -> NoReturn:
    if os.getppid() != parent:  # else the others, and the launcher, still need it
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
