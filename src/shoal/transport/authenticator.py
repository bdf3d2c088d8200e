"""Decides for libzmq whether the owner of a CURVE key may connect (ZAP, RFC 27).

    libzmq's thread: handshake ── request(key) ──▶ ZapAuthenticator ── 200 + name | 300 | 400 ──▶ connection or none

ZeroMQ never retries a handshake rejected with 400. Where keys are listed only after their owner has connected, an
authenticator therefore parks unknown keys until they are listed, and drops the oldest with 300, which is retried.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from shoal.transport.connection import is_readable

MOST_PARKED = 128
"""Unknown keys that wait to be listed, at a worker's endpoint."""
# ZAP's address is fixed by RFC 27: libzmq asks here, whatever the socket, so a context has at most one authenticator.
_ADDRESS = "inproc://zeromq.zap.01"
_ACCEPTED, _RETRY, _REJECTED = b"200", b"300", b"400"

Identify = Callable[[bytes], str | None]
"""Returns the name under which the owner of a public key (32 bytes) is known; None: the key is not listed."""


@dataclass(frozen=True)
class AuthRequest:
    """A peer has shown a key, and libzmq waits for the answer."""

    route: bytes
    number: bytes
    key: bytes


class ZapAuthenticator:
    """Used by the thread that owns the listening socket; one per context."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", identify: Identify, most_parked: int = MOST_PARKED
    ) -> None:
        """`most_parked`: 0 rejects unknown keys at once."""
        # A ROUTER, not a REP: a parked request is answered later, and others meanwhile.
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(_ADDRESS)  # inside this process
        self._identify, self._most_parked = identify, most_parked
        self._parked: deque[AuthRequest] = deque()

    def answer(self) -> None:
        """Answer all requests that have come since the last call."""
        with contextlib.suppress(zmq.Again):
            while is_readable(self.socket):
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
                # route, empty, version, number, domain, address, identity, mechanism, credentials
                if len(parts) == 9 and parts[7] == b"CURVE":
                    self._check(AuthRequest(parts[0], parts[3], parts[8]))

    def check_parked(self) -> None:
        """Check all parked keys again, because the list has changed."""
        parked, self._parked = self._parked, deque()
        for request in parked:
            self._check(request)

    def _check(self, request: AuthRequest) -> None:
        name = self._identify(request.key)
        if name is not None:
            self._reply(request, _ACCEPTED, name)
        # Keys listed once and for all, as at the coordinator: what is unknown now stays unknown.
        elif not self._most_parked:
            self._reply(request, _REJECTED, "")
        else:
            # The owner may be a newcomer whose view has reached its own agent before ours.
            self._parked.append(request)
            if len(self._parked) > self._most_parked:
                self._reply(self._parked.popleft(), _RETRY, "")

    def _reply(self, request: AuthRequest, status: bytes, name: str) -> None:
        self.socket.send_multipart([request.route, b"", b"1.0", request.number, status, b"", name.encode(), b""])


def decode_key(public: bytes) -> bytes:
    """Return a public key in binary; empty for text that is no key, and equals no member's."""
    try:
        return bytes(z85.decode(public))
    except Exception:  # noqa: BLE001  (the decoder raises several types for bad input)
        return b""
