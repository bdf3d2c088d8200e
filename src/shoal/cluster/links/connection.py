"""A connection that a peer has made to this worker's door, known by its descriptor; cut when the peer is evicted.

ZeroMQ has no call that closes one connection of a socket that listens, but tells by which descriptor a message came.
Shutting that down ends the connection on both sides; ZeroMQ then closes the descriptor itself. Between the message and
the eviction ZeroMQ may have closed it, and another connection may have got its number: so it is looked at before. If
that is another peer of the same host at this door, it merely connects again.
"""

import contextlib
import os
import socket
from dataclasses import dataclass

import zmq


@dataclass(frozen=True)
class Connection:
    """Where a message came from."""

    descriptor: int
    address: str

    @classmethod
    def of(cls, frame: zmq.Frame) -> "Connection":
        return cls(int(frame.get(zmq.SRCFD)), str(frame.get("Peer-Address")))

    def cut(self, port: int) -> None:
        """End it, if it is still a connection of this peer's host to our `port`."""
        if self.descriptor < 0:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as link:
            if link.getsockname()[1] == port and link.getpeername()[0] == self.address:
                link.shutdown(socket.SHUT_RDWR)
