"""What is said to a pool, over a socket in the user's private folder (mode 0700): one message is one packet.

shoal run --on pool ── StartRun + descriptors 0, 1, 2 ──> server     forks a head that has imported torch already
                    <── CommandEnded(code) ──
the head            ── LeaseMachine + two pipes ──> server ── order ──> agent of that machine: forks `shoal join`
                    <── CommandEnded(code) ──
"""

import array
import contextlib
import os
import socket
from pathlib import Path

import msgspec

from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.core.private import open_private

LARGEST = 1 << 20
MOST_DESCRIPTORS = 3


class PoolMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all."""


class StartRun(PoolMessage, frozen=True, kw_only=True):
    """Run `shoal WORDS` in a folder, with these variables and the descriptors that come along."""

    words: tuple[str, ...]
    folder: str
    environment: dict[str, str]


class LeaseMachine(PoolMessage, frozen=True, kw_only=True):
    """Run `shoal WORDS` on a machine; its output goes to the two pipes that come along."""

    machine: str
    words: tuple[str, ...]
    secret: str
    folder: str


class AskMachines(PoolMessage, frozen=True, kw_only=True):
    """Which machines are there?"""


class SendSignal(PoolMessage, frozen=True, kw_only=True):
    """To the run that was started over this connection."""

    number: int


class LeaveRun(PoolMessage, frozen=True, kw_only=True):
    """The leased machine leaves the run after its step."""


class StopPool(PoolMessage, frozen=True, kw_only=True):
    """End the pool and give its machines back."""


class MachineRow(msgspec.Struct, frozen=True):
    """A machine of the pool."""

    name: str
    workers: int
    ready: bool
    leased: bool
    leases: int
    """How often it was leased so far."""


class PoolMachines(PoolMessage, frozen=True, kw_only=True):
    """The answer to AskMachines."""

    engine: str
    rows: tuple[MachineRow, ...]


class CommandEnded(PoolMessage, frozen=True, kw_only=True):
    """What was asked for has ended."""

    code: int


AnyMessage = StartRun | LeaseMachine | AskMachines | SendSignal | LeaveRun | StopPool | PoolMachines | CommandEnded
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(AnyMessage)


class PoolConnection:
    """One end of a conversation."""

    def __init__(self, end: socket.socket) -> None:
        self.end, self.over = end, False
        # A packet is sent whole or not at all, so the buffer must hold the largest.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)

    @classmethod
    def open(cls, name: str) -> "PoolConnection":
        """To the pool of this name; UsageError if there is none."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.connect(str(socket_file(name)))
        except OSError:
            end.close()
            raise UsageError(f"no pool {name!r} is there; start it with shoal pool start --on ENGINE") from None
        return cls(end)

    def send(self, message: AnyMessage, descriptors: tuple[int, ...] = ()) -> None:
        data = _encoder.encode(message)
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self.end.sendmsg([data], sent)
        except OSError:
            self.over = True

    def receive(self, wait: bool = True) -> tuple[AnyMessage | None, list[int]]:
        """A message and the descriptors that came with it; None: there is none, or the other side is gone (`over`)."""
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        # Descriptors beyond these are dropped by the kernel.
        room = socket.CMSG_LEN(MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, rest, _, _ = self.end.recvmsg(LARGEST, room, flags)
        except BlockingIOError:
            return None, []
        except OSError:
            data, rest = b"", []
        came = array.array("i")
        for level, kind, sent in rest:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came.frombytes(sent[: len(sent) - len(sent) % came.itemsize])
        if not data:
            self.over = True
            return None, list(came)
        try:
            return _decoder.decode(data), list(came)
        except msgspec.MsgspecError:
            self.over = True
            close_all(list(came))
            return None, []

    def close(self) -> None:
        self.over = True
        self.end.close()


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def socket_file(name: str) -> Path:
    return open_private() / f"pool-{check_id(name, 'pool')}.sock"
