"""The file by which `shoal watch` finds the server that follows a run, in the user's private folder.

Every process of such a server writes its own after each look for new versions. One that was killed leaves its file,
which the next reader removes.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.errors import UsageError
from shoal.core.private import check_private, open_private, private_folder
from shoal.core.process import HostProcess

if TYPE_CHECKING:
    from shoal.serve.core import ServingCore

LARGEST = 1 << 20
MOST_HISTORY = 20


class ServedCheckpoint(msgspec.Struct, frozen=True):
    """One checkpoint as a version."""

    step: int
    role: str
    """`answers`, `shadow`, `answers 5 %`, `refused`, or empty: it is neither tried nor serving."""
    requests: int = 0
    failed: int = 0
    compared: int = 0
    agreed: int = 0


class ServingNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves the checkpoints of the run in `dir`."""

    dir: str
    model: str
    address: str
    process: HostProcess
    versions: tuple[ServedCheckpoint, ...] = ()
    history: tuple[str, ...] = ()
    """What was decided about versions, newest last."""

    @property
    def path(self) -> Path:
        return private_folder() / f"serving-{self.process.pid}-{self.model}.json"


def write_notice(notice: ServingNotice) -> None:
    """Write the file, or replace it; a reader sees one or the other."""
    open_private()
    part = notice.path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(notice))
    part.rename(notice.path)


def remove_notice(notice: ServingNotice) -> None:
    for path in (notice.path, notice.path.with_suffix(".part")):
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        private_folder().rmdir()  # the folder goes with the last of its files


def servers_of(directory: Path) -> list[ServingNotice]:
    """Who serves the run in `directory`: one of the processes of each server."""
    wanted = str(directory.resolve())
    found = {(each.address, each.model): each for each in _notices() if each.dir == wanted}
    return [found[key] for key in sorted(found)]


def _notices() -> Iterator[ServingNotice]:
    folder = private_folder()
    try:
        check_private(folder)
        paths = sorted(folder.glob("serving-*.json"))
    except (OSError, UsageError):
        return
    for path in paths:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            with path.open("rb") as file:
                notice = msgspec.json.decode(file.read(LARGEST), type=ServingNotice)
            # Removing it by what it says would remove another process's file.
            if notice.path != path:
                continue
            if notice.process.state == "gone":
                remove_notice(notice)
            else:
                yield notice


def notices_of(core: "ServingCore", address: str) -> list[ServingNotice]:
    """One for each model of the core that follows a run."""
    from shoal.serve.follow import FollowSource

    me = HostProcess.of(os.getpid())
    found = []
    for name, model in core.models.items():
        if isinstance(model.source, FollowSource):
            told = core.router.describe(name, core.versions_metrics(name))
            versions = _versions(told, core.manager.serving(name), model.stream.numbers)
            history = tuple((told.get("rollout") or {}).get("history", ())[-MOST_HISTORY:])
            place = str(model.source.directory.resolve())
            found.append(
                ServingNotice(dir=place, model=name, address=address, process=me, versions=versions, history=history)
            )
    return found


def _versions(told: dict[str, Any], serving: int | None, numbers: Any) -> tuple[ServedCheckpoint, ...]:
    shares, counts = told["shares"], told["versions"]
    refused = (told.get("rollout") or {}).get("rejected", ())

    def role(number: int) -> str:
        if (share := shares.get(str(number), 0.0)) > 0:
            return "answers" if share == 1 else f"answers {100 * share:.0f} %"
        if told["shadow"] == str(number):
            return "shadow"
        if number in refused:
            return "refused"
        return "answers" if number == serving and not shares else ""

    def counted(number: int) -> ServedCheckpoint:
        each = counts.get(str(number), {})
        kinds = ("requests", "failed", "compared", "agreed")
        return ServedCheckpoint(number, role(number), **{kind: each.get(kind, 0) for kind in kinds})

    known = [counted(number) for number in sorted(numbers)]
    return tuple(each for each in known if each.role or each.requests)


async def announce_for_ever(core: "ServingCore", address: str, period: float) -> None:
    """Tell what is served as long as the task runs; a disk that fails costs the page its news, not the server."""
    written: dict[str, ServingNotice] = {}
    try:
        while True:
            for notice in notices_of(core, address):
                if written.get(notice.model) != notice:
                    with contextlib.suppress(OSError, UsageError):
                        write_notice(notice)
                        written[notice.model] = notice
            await asyncio.sleep(period)
    finally:
        for notice in written.values():
            remove_notice(notice)
