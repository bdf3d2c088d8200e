"""Servers of this machine: where they listen, the tokens they ask for, and the names they answer to."""

import ipaddress
import platform
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.private_file import read_private, write_private

LEAST_TOKEN, MOST_TOKEN = 16, 512
BACKLOG = 128


def new_token() -> str:
    # 24 bytes: 192 bits, and 32 characters that need no quoting in a URL.
    return secrets.token_urlsafe(24)


def read_token(path: Path) -> str:
    """The token in a private file, which is made if it is missing."""
    try:
        text = read_private(path, MOST_TOKEN + 1).decode("ascii").strip()
    except FileNotFoundError:
        write_private(path, (text := new_token()) + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {str(path)!r} cannot be read: {error}; name a text file of your own") from None
    if not LEAST_TOKEN <= len(text) <= MOST_TOKEN or not text.isprintable() or " " in text:
        raise UsageError(
            f"--token-file {str(path)!r} holds {len(text)} characters; a token is one word of {LEAST_TOKEN} to "
            f"{MOST_TOKEN}; remove the file, and a new one is made"
        )
    return text


class OwnNames:
    """Names of this machine: an IP address, localhost, its host name, and those it was given.

    A foreign name that was made to point here (DNS rebinding) is not among them.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", platform.node().lower(), *(name.lower() for name in names)}

    def __contains__(self, host: str) -> bool:
        """Return whether a Host header, with or without a port, names this machine."""
        # The last colon: an IPv6 address has more, and stands in brackets before its port.
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in self._names:
            return bool(name)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def bind(host: str, port: int | None, usual: int) -> socket.socket:
    """A listening socket; without a port the usual one, or a free one if that is taken."""
    try:
        return _bind(host, usual if port is None else port)
    except OSError as error:
        if port is not None:
            raise UsageError(f"cannot serve on {host}:{port}: {error.strerror}; choose another --port") from None
    try:
        return _bind(host, 0)
    except OSError as error:
        raise UsageError(f"cannot serve on {host!r}: {error.strerror}; --host is an address of this machine") from None


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen: it keeps the port for servers of this user that share it (SO_REUSEPORT)."""
    family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, proto)
    try:
        # The kernel lets only sockets of one user share a port this way.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(place)
    except OSError as error:
        held.close()
        raise UsageError(f"cannot serve on {host}:{port}: {error.strerror}; choose another port") from None
    return held


def _bind(host: str, port: int) -> socket.socket:
    family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, proto)
    try:
        # A server that was just stopped leaves connections behind, which would keep the port for a minute.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(BACKLOG)  # a client that opens the printed address at once must not be refused
    except OSError:
        listening.close()
        raise
    return listening


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
