"""Addresses as users write them, and this machine's own. Without torch, so that a command that submits is quick."""

import ipaddress
import os
import socket

from shoal.core.errors import UsageError

ADDRESS_VARIABLE = "SHOAL_ADDRESS"


def parse(text: str, what: str, least: int = 1) -> tuple[str, int]:
    """Host, as numbers, and port; UsageError names `what`."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not least <= int(port) < 1 << 16:
        raise UsageError(f"{what} {text!r} is no address; write HOST:PORT, as in 192.168.1.10:7700")
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"{what} {text!r}: no machine {host!r} is known here; give its IPv4 address") from None
    return str(found[0][4][0]), int(port)


def check_own(host: str, port: int, what: str) -> None:
    """UsageError if nobody could listen there, or nobody could tell others where that is."""
    if ipaddress.ip_address(host).is_unspecified:
        raise UsageError(f"{what} {host}:{port} is no single address; give the one by which other machines reach this")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        # a port counts as free while connections of a run that has ended are closing
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))  # nothing listens: only to know now whether it could
        except OSError as error:
            reason = f"{what} {host}:{port}: {error.strerror}"
            raise UsageError(f"{reason}; give an address of this machine and a port that is free") from None


def find_free_port(host: str) -> int:
    """One that nothing listens at now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])


def towards(host: str, port: int) -> str:
    """This machine's address as `host` sees it: $SHOAL_ADDRESS, or that of the way there."""
    if told := os.environ.get(ADDRESS_VARIABLE):
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dummy:
        try:
            dummy.connect((host, port))  # of a datagram socket: chooses a route, sends nothing
        except OSError as error:
            raise UsageError(f"there is no way from here to {host}: {error.strerror}") from None
        address: str = dummy.getsockname()[0]
    return address
