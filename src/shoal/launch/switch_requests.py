"""`shoal switch` asks a live run for another plan: a file beside the run's notice, which its launcher takes.

    shoal switch                       launcher                        coordinator
    NAME.switch (plan, token) ───────▶ takes the file; SwitchPlan ───▶ one view change
    waits for its token in the notice ◀─ `switched` ◀── ViewInstalled ──┘

The folder is the user's alone (mode 0700), as with `shoal stop`: who can write there could signal the launcher too.
"""

import contextlib
import secrets
from typing import Annotated

import msgspec

from shoal.core.private import open_private, private_folder
from shoal.launch.live_runs import RunNotice
from shoal.membership.view import PlanString

LARGEST = 4 << 10
SUFFIX = ".switch"


class SwitchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that the user wants, under a token of its own."""

    plan: PlanString
    token: Annotated[str, msgspec.Meta(max_length=32, pattern=r"^[0-9a-f]+\Z")] = ""


def write_request(notice: RunNotice, plan: str) -> str:
    """Ask the launcher of a live run; returns the token under which it answers. A later request replaces this one."""
    request = SwitchRequest(plan=plan, token=secrets.token_hex(8))
    path = open_private() / f"{notice.name}{SUFFIX}"
    part = path.with_suffix(f"{SUFFIX}-{request.token}")
    part.write_bytes(msgspec.json.encode(request))
    part.rename(path)
    return request.token


def withdraw_request(notice: RunNotice) -> None:
    """The run has ended, and nobody takes it."""
    folder = private_folder()
    (folder / f"{notice.name}{SUFFIX}").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def take_request(name: str) -> SwitchRequest | None:
    """What was asked of the run with this notice, once; None if nothing was, or nothing that can be read."""
    path = private_folder() / f"{name}{SUFFIX}"
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST)
    except OSError:
        return None
    path.unlink(missing_ok=True)
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(data, type=SwitchRequest)
    return None
