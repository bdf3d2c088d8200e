"""Those who have no business at a endpoint: bare sockets, wrong keys, noise, and what they may be answered."""

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from shoal.membership.credentials import ClientCredentials
from shoal.membership.protocol import JoinRefused

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Of ZeroMQ's protocol, for somebody without a key."""
NOISE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": bytes(range(256)) * 400,
    "no key": GREETING + b"\x04\x19\x05READY" + bytes(19),
    "2^63": GREETING + b"\x06" + struct.pack(">Q", 2**63 - 1) + bytes(70_000),
    "a megabyte": GREETING.replace(b"NULL\0", b"CURVE") + b"\x06" + struct.pack(">Q", 1 << 20) + bytes(100_000),
}


class Stranger:
    """A ZeroMQ socket of somebody."""

    def __init__(self, address: str, key: ClientCredentials | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.sndtimeo = 30_000
        if key is not None:
            self.socket.curve_serverkey = key.coordinator
            self.socket.curve_publickey, self.socket.curve_secretkey = key.pair.public, key.pair.secret
        self.socket.connect(address)

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def answer(self, seconds: float = 30.0) -> list[bytes]:
        return self.socket.recv_multipart() if self.socket.poll(int(seconds * 1000)) else []

    def close(self) -> None:
        self.context.destroy(linger=0)


@contextlib.contextmanager
def stranger(address: str, key: ClientCredentials | None = None) -> Iterator[Stranger]:
    here = Stranger(address, key)
    try:
        yield here
    finally:
        here.close()


def refusal(frames: list[bytes]) -> str:
    """Why somebody was not let in."""
    return msgspec.msgpack.decode(frames[1], type=JoinRefused).reason


def heard(other: Stranger, run: str) -> None:
    """Everything it said before was read: the answer to a last word has come back."""
    other.say(f"shoal 999999 {run}".encode(), b"")
    said = b"?"
    while b"the other 999999" not in said:
        assert said, "the coordinator does not answer"
        said = b"".join(other.answer())


def call(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30.0)


def disturb(address: str, times: int) -> None:
    """Every kind of noise, so often, over connections that stay open, and a TLS handshake."""
    callers = [(call(address), data) for data in NOISE.values() for _ in range(times)]
    for caller, data in callers:
        with contextlib.suppress(OSError):  # thrown out already
            caller.sendall(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    caller = call(address)
    caller.settimeout(0.3)
    with contextlib.suppress(OSError):
        context.wrap_socket(caller).close()
    caller.close()
    for caller, _ in callers:
        caller.close()


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
