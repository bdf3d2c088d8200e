"""Bounds the memory libzmq holds for messages that never end, at a socket that listens on TCP.

libzmq hands over a message of several parts when the last has come, and keeps the others until then. Its limits
count whole messages (RCVHWM) and bytes of one part (MAXMSGSIZE), so a peer that never sends the last part takes
memory without limit. The kernel knows how many bytes libzmq has read from a connection. If these are many, and no
message of it was delivered while others were, the connection is closed, and libzmq drops what it holds of it.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.transport.connection import bytes_read
from shoal.transport.pending_connections import DescriptorView

MOST_OF_ONE = 1 << 20
"""Bytes of one connection without a complete message; the largest message has 128 KiB."""
# Many connections that each stay below MOST_OF_ONE are limited together.
MOST_OF_ALL = 32 << 20
EVERY = 0.25
"""Seconds between two checks."""

Address = tuple[str, int]


@dataclass
class _UnreadBytes:
    peer: Address
    base: int = 0
    """Bytes that libzmq had read when a message of it was last heard."""
    come: int = 0
    """Bytes read since then."""
    held: int = 0
    """Of them, those read before the previous check: complete messages among them have been delivered since."""


class UnfinishedLimiter:
    """Used by the thread that reads the socket; `accepted`: its connections by libzmq's descriptor."""

    def __init__(self, accepted: Callable[[], Mapping[int, Address]]) -> None:
        self._accepted = accepted
        self._view = DescriptorView()
        self._known: dict[int, _UnreadBytes] = {}
        self._heard: set[int] = set()
        self._messages = 0
        self._due = 0.0

    def heard(self, fd: int) -> None:
        """Note that a complete message came on this connection."""
        self._heard.add(fd)
        self._messages += 1

    def look(self, now: float, drained: bool) -> list[tuple[int, Address]]:
        """Close the connections that hold too much, and return them; `drained`: no message waits to be read."""
        accepted = self._accepted()
        # libzmq reads from connections in turn: after two messages per connection every complete one was delivered
        if now < self._due or not (drained or self._messages > 2 * len(accepted)):
            return []
        self._due, self._messages = now + EVERY, 0
        self._known = {fd: self._measure(fd, peer) for fd, peer in accepted.items()}
        self._heard.clear()
        return [(fd, peer) for fd, peer in self._choose() if self._close(fd, peer)]

    def _measure(self, fd: int, peer: Address) -> _UnreadBytes:
        unread = self._known.get(fd)
        if unread is None or unread.peer != peer:
            unread = _UnreadBytes(peer)
        with contextlib.suppress(OSError), self._view.of(fd) as here:
            read = bytes_read(here)
            if fd in self._heard:
                unread.base, unread.come = read, 0
            unread.held, unread.come = min(unread.come, read - unread.base), read - unread.base
        return unread

    def _choose(self) -> list[tuple[int, Address]]:
        """Choose the connections that hold too much alone, and the largest until all others together hold little."""
        # The largest first: the fewest connections are closed.
        order = sorted(self._known.items(), key=lambda item: -item[1].held)
        total, chosen = sum(unread.held for _, unread in order), []
        for fd, unread in order:
            if unread.held <= MOST_OF_ONE and total <= MOST_OF_ALL:
                break
            chosen.append((fd, unread.peer))
            total -= unread.held
        return chosen

    def _close(self, fd: int, peer: Address) -> bool:
        with contextlib.suppress(OSError), self._view.of(fd) as here:
            if here.getpeername()[:2] == peer:  # a descriptor may stand for another connection meanwhile
                here.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def close(self) -> None:
        self._view.close()
