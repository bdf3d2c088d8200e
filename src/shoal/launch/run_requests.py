"""What a user asks of a live run: a file beside the run's notice, which its launcher takes.

    shoal switch, shoal scale           launcher                        coordinator
    NAME.switch, NAME.scale (token) ──▶ takes the file; does it ───────▶ one view change
    waits for its token in the notice ◀─ `switched`, `scaled` ◀─ ViewInstalled ─┘

The folder is the user's alone (mode 0700), as with `shoal stop`: who can write there could signal the launcher too.
"""

import contextlib
import secrets
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from shoal.core.private import open_private, private_folder
from shoal.launch.live_runs import RunNotice
from shoal.membership.view import PlanString

LARGEST = 64 << 10
MOST_SCALED = 1024

Token = Annotated[str, msgspec.Meta(max_length=32, pattern=r"^[0-9a-f]+\Z")]
SlotNumber = Annotated[int, msgspec.Meta(ge=0, le=MOST_SCALED)]


class SwitchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that the user wants, under a token of its own."""

    plan: PlanString
    token: Token = ""


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that the user wants more of, or fewer, under a token of its own."""

    add: SlotNumber = 0
    """How many are to be started."""
    remove: Annotated[tuple[SlotNumber, ...], msgspec.Meta(max_length=MOST_SCALED)] = ()
    """Which are to leave after their step."""
    workers: SlotNumber = 0
    """How many of this launcher's there are to be, instead, as `run.stage` asks, maybe twice. 0: as above."""
    token: Token = ""


SUFFIXES: dict[type, str] = {SwitchRequest: ".switch", ScaleRequest: ".scale"}
Asked = TypeVar("Asked", SwitchRequest, ScaleRequest)


def write_request(notice: RunNotice, request: SwitchRequest | ScaleRequest) -> str:
    """Ask the launcher of a live run; returns the token under which it answers. A later request of the same kind
    replaces this one."""
    request = msgspec.structs.replace(request, token=secrets.token_hex(8))
    path = _path(open_private(), notice.name, type(request))
    # named by its token, because two commands may write at a time
    part = path.with_suffix(f"{path.suffix}-{request.token}")
    part.write_bytes(msgspec.json.encode(request))
    # the launcher sees a whole file, or none
    part.rename(path)
    return request.token


def withdraw_request(notice: RunNotice, kind: type[Asked]) -> None:
    """The run has ended, and nobody takes it."""
    folder = private_folder()
    _path(folder, notice.name, kind).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def take_request(name: str, kind: type[Asked]) -> Asked | None:
    """What was asked of the run with this notice, once; None if nothing was, or nothing that can be read."""
    path = _path(private_folder(), name, kind)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST)
    except OSError:
        return None
    # also if it cannot be read, or it would be found again at every look
    path.unlink(missing_ok=True)
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(data, type=kind)
    return None


def _path(folder: Path, name: str, kind: type) -> Path:
    return folder / f"{name}{SUFFIXES[kind]}"
