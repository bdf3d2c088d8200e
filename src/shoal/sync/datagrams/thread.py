"""The thread that sends and receives the datagrams of one round, on a socket of that round alone.

Between two rounds there is neither thread nor socket: what is under way then is for nobody.
"""

import select
import socket
import threading
from collections.abc import Mapping

from shoal.core.clock import now
from shoal.core.errors import DeadlineError, UsageError
from shoal.sync.datagrams.best_effort import DATAGRAM_BYTES, BestEffortExchange

LOOK = 0.02
"""Seconds after which the thread looks whether it is to end."""
ENDS = 60.0
"""Seconds within which it must have ended: it never waits longer than a look."""
AT_ONCE = 32
"""Datagrams that it sends, or reads, before it turns to the others."""
BUFFER = 4 << 20
"""Bytes that may wait in the system to be read; it may allow fewer."""


def open_socket(host: str) -> socket.socket:
    """Return a socket at any free port of an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        made.bind((host, 0))
    except OSError as error:
        made.close()
        raise UsageError(f"datagrams cannot be received at {host}: {error.strerror}; write allreduce") from None
    made.setblocking(False)
    return made


class DatagramThread(threading.Thread):
    """Runs until `stop`."""

    def __init__(
        self, sock: socket.socket, exchange: BestEffortExchange, addresses: Mapping[str, tuple[str, int]]
    ) -> None:
        """`addresses`: of each member's socket."""
        # daemon: a training thread that fails must not wait for it
        super().__init__(name="shoal-datagrams", daemon=True)
        self._socket, self._exchange, self._addresses = sock, exchange, addresses
        self._buffer = bytearray(DATAGRAM_BYTES + 1)  # what is longer is cut, and then has no right size
        self._ends = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ends:
                self._turn()
        except BaseException as error:  # noqa: BLE001  (raised in the training thread, by `stop`)
            self._failure = error

    def _turn(self) -> None:
        wait = min(LOOK, self._exchange.wait(now()))
        readable, _, _ = select.select([self._socket], [], [], wait)
        for _ in range(AT_ONCE if readable else 0):
            if not self._receive():
                break
        for _ in range(AT_ONCE):
            if not self._send():
                break

    def _receive(self) -> bool:
        try:
            size = self._socket.recv_into(self._buffer)
        except OSError:  # nothing is there, or another host has said that a port is closed
            return False
        self._exchange.receive(bytes(self._buffer[:size]))
        return True

    def _send(self) -> bool:
        found = self._exchange.next_datagram(now())
        if found is None:
            return False
        member, data = found
        try:
            self._socket.sendto(data, self._addresses[member])
        except OSError:  # a full buffer, a network that is down: the next cycle makes up for it
            self._exchange.counts.unsent += 1
        return True

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._ends = True
        self.join(ENDS)
        if self.is_alive():
            raise DeadlineError(f"the thread of datagrams has not ended for {ENDS:.0f} s")
        self._socket.close()
        if self._failure is not None:
            raise self._failure
