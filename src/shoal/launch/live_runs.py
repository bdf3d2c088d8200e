"""The file by which `shoal ps` finds a live run, in the user's private folder."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.core.errors import UsageError
from shoal.core.ids import PATTERN
from shoal.core.private import check_private, open_private, private_folder
from shoal.core.process import HostProcess
from shoal.hosts.status_board import BYTES, StatusBoard

LARGEST = 1 << 20
TRIES = 5
"""Another run that ends may take the empty folder away."""


class NoticeSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's slot, and the process in it."""

    worker: int
    host: str
    process: HostProcess
    starts: int = 1
    fate: str = ""
    """Empty while a worker has it; else `ended`, `left`, `lost`, `starting again` or `quarantined`."""
    reason: str = ""
    """Of its last loss."""


class RunNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A live run."""

    run: str
    dir: str
    plan: str
    launcher: HostProcess
    since: float
    """Wall-clock time of its start, for people."""
    board: int
    """The launcher's descriptor of the memory that begins with the board."""
    slots: tuple[NoticeSlot, ...] = ()
    members: tuple[int, ...] = ()
    """Workers of the present view, in order of rank."""
    lab: str = ""
    attempt: int = 1
    coordinator: HostProcess | None = None
    folder: str = ""
    """Where the coordinator's socket is."""
    stopping: bool = False
    asked: str = ""
    """Token of the switch of the plan that the user asked for and that is still to be made."""
    switched: str = ""
    """Token of the last one that was made."""
    scaled: str = ""
    """Token of the last request for more or fewer workers that was carried out."""
    room: int = 0
    """How many workers can be added."""
    services_stay: str = ""
    """Why servers can neither be started nor ended while it trains; empty if they can."""
    least: int = 1
    """Fewer living workers end the run."""
    namespace: str = ""
    """In which process numbers mean something."""

    @property
    def name(self) -> str:
        """Of the file: two runs of one name may live in two folders of runs."""
        return f"{self.run}@{self.launcher.pid}"

    def read_board(self) -> StatusBoard | None:
        """What the workers do now; None if the launcher has ended meanwhile."""
        try:
            file = os.open(f"/proc/{self.launcher.pid}/fd/{self.board}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            memory = mmap.mmap(file, BYTES, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)
        # asked last: the number may be that of a later process by now, and the memory not a board
        return StatusBoard(memory) if self.launcher.state != "gone" else None


def own_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def post(notice: RunNotice) -> None:
    """Write the file, or replace it; a reader sees one or the other."""
    for attempt in range(TRIES):
        path = open_private() / f"{notice.name}.json"
        part = path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(notice))
            part.rename(path)
        except FileNotFoundError:
            if attempt == TRIES - 1:
                raise
        else:
            return


def remove(name: str) -> None:
    """The run is over; the folder goes with the last of them."""
    folder = private_folder()
    for suffix in (".json", ".part", ".switch", ".scale"):
        with contextlib.suppress(OSError):
            (folder / f"{name}{suffix}").unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def live() -> list[RunNotice]:
    """The runs of this user on this host, oldest first; what dead ones left is removed on the way."""
    found = sorted(_notices(), key=lambda notice: notice.since)
    for notice in found:
        if notice.launcher.state == "gone":
            sweep(notice)
    return [notice for notice in found if notice.launcher.state != "gone"]


def sweep(notice: RunNotice) -> None:
    """Remove what a run left whose launcher was killed; its workers died with it."""
    coordinator, folder = notice.coordinator, Path(notice.folder or "/nonexistent")
    if coordinator is not None and coordinator.state != "gone":
        return  # it is about to end, and tidies up itself
    with contextlib.suppress(OSError, UsageError):
        check_private(folder)
        (folder / "coordinator").unlink(missing_ok=True)
        folder.rmdir()
    remove(notice.name)


def _notices() -> Iterator[RunNotice]:
    folder = private_folder()
    try:
        check_private(folder)
        paths = sorted(folder.glob("*@*.json"))
    except FileNotFoundError:
        return
    here = own_namespace()
    for path in paths:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            with path.open("rb") as file:
                notice = msgspec.json.decode(file.read(LARGEST), type=RunNotice)
            # a container that shares this folder has processes of its own, which cannot be judged from here
            if notice.namespace == here and PATTERN.fullmatch(notice.run) and path.stem == notice.name:
                yield notice
