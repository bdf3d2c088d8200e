"""Between a launcher and the coordinator it forked: a socketpair that keeps messages whole (SOCK_SEQPACKET).

A launcher starts no thread, so it has no ZeroMQ; this never blocks either side. What does not fit in the kernel's
buffer is not sent, and whoever sends says it again.
"""

import contextlib
import os
import socket

import msgspec

from shoal.cluster.membership.log import Installed, Lost
from shoal.cluster.membership.messages import Gone, Text

LARGEST = 128 << 10


class Said(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of what is said here only."""


class Stop(Said, frozen=True, kw_only=True):
    """End, and tell whoever is still there how the run did."""

    well: bool = True
    reason: Text = "it is over"


class Ready(Said, frozen=True, kw_only=True):
    """The coordinator serves, at this address."""

    address: Text


class Failed(Said, frozen=True, kw_only=True):
    """The coordinator ends, for this reason."""

    reason: str


Command = Gone | Stop
News = Ready | Failed | Lost | Installed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Gone | Stop | Ready | Failed | Lost | Installed)


class Channel:
    """One end. `over` is true once the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self.over = end, False
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple["Channel", "Channel"]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, what: Command | News) -> bool:
        """Whether it is on its way."""
        try:
            self._end.send(_encoder.encode(what))
        except BlockingIOError:
            return False
        except OSError:
            self.over = True
            return False
        return True

    def receive(self) -> list[Command | News]:
        """Whatever has come."""
        said: list[Command | News] = []
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self._end.recv(LARGEST):
                said.append(_decoder.decode(data))
            self.over = True
        return said

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end.close()

    def forget(self) -> None:
        """In a forked child that has no business with it."""
        os.close(self._end.detach())
