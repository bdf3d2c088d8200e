"""The channel between the launcher and the coordinator it forked: a socketpair, and the messages that cross it.

launcher ── ProcessExited, ExpectRemote, SwitchPlan, StopCoordinator ──▶ coordinator
launcher ◀── CoordinatorReady, MemberLost, ViewInstalled, ReplicaHeld, CoordinatorFailed ── coordinator
launcher ◀── PreparePlan ── coordinator; PlanPrepared, PlanUnprepared ──▶      (plan_requests.py)
"""

import contextlib
import os
import socket

import msgspec

from shoal.membership.log_entries import MemberLost, ViewInstalled
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared, PreparePlan
from shoal.membership.protocol import Count, ProcessExited, Text
from shoal.membership.view import Name, PlanString

LARGEST = 128 << 10
"""Bytes of a message; no command or report is longer."""


class ChannelMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of the messages that only this channel carries."""


class StopCoordinator(ChannelMessage, frozen=True, kw_only=True):
    """Stop, and tell the remaining members how the run ended."""

    well: bool = True
    reason: Text = "it is over"


class ExpectRemote(ChannelMessage, frozen=True, kw_only=True):
    """Let the first view wait for this many workers of other machines."""

    count: int


class SwitchPlan(ChannelMessage, frozen=True, kw_only=True):
    """Switch to the plan that the user asked for."""

    plan: PlanString


class CoordinatorReady(ChannelMessage, frozen=True, kw_only=True):
    """The coordinator is listening at this address."""

    address: Text


class CoordinatorFailed(ChannelMessage, frozen=True, kw_only=True):
    """The coordinator failed and stops, for this reason."""

    reason: str


class ReplicaHeld(ChannelMessage, frozen=True, kw_only=True):
    """What a worker of another machine held when it left. Its record stays on its own machine, so it has to say so."""

    member: Name
    step: Count
    fingerprint: Text


Command = ProcessExited | StopCoordinator | ExpectRemote | SwitchPlan | PlanPrepared | PlanUnprepared
News = CoordinatorReady | CoordinatorFailed | MemberLost | ViewInstalled | ReplicaHeld | PreparePlan

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command | News] = msgspec.msgpack.Decoder(Command | News)


class LauncherChannel:
    """One end of the channel; never blocks. `over` becomes true when the other end is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self.over = end, False
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple["LauncherChannel", "LauncherChannel"]:
        # SEQPACKET keeps the borders of messages, so a reader needs no framing.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, what: Command | News) -> bool:
        """Return whether the message was sent; a full buffer or a closed end drops it."""
        try:
            self._end.send(_encoder.encode(what))
        except BlockingIOError:
            return False
        except OSError:
            self.over = True
            return False
        return True

    def receive(self) -> list[Command | News]:
        """Return the messages that have arrived."""
        said: list[Command | News] = []
        with contextlib.suppress(BlockingIOError, ConnectionError):
            # No bytes mean that the other end is closed, because no message is empty.
            while data := self._end.recv(LARGEST):
                said.append(_decoder.decode(data))
            self.over = True
        return said

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end.close()

    def forget(self) -> None:
        """Close this process's copy, in a forked child that does not use it; the parent's copy stays open."""
        os.close(self._end.detach())
