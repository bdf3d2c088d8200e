"""Where data servers listen, and where workers reach them."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.membership.credentials import ClientCredentials, ServerCredentials


@dataclass(frozen=True)
class DataServerSeat:
    """What a data server is given."""

    number: int
    address: str
    """`ipc://FILE`, or `tcp://HOST:PORT` under keys."""
    lock: ServerCredentials | None = None
    enter: Callable[[], object] = lambda: None
    """In its process: go there."""


@dataclass(frozen=True)
class DataTierAddress:
    """What a worker is given: the servers, by number, and the keys they know it by."""

    servers: tuple[str, ...] = ()
    keys: tuple[ClientCredentials | None, ...] = ()
    """One for each server; None on one host."""


def seats_at_files(number: int, folder: str) -> tuple[list[DataServerSeat], DataTierAddress]:
    """On this host, for this user's workers; `folder` is this user's alone."""
    addresses = [f"ipc://{folder}/data-{each}" for each in range(number)]
    seats = [DataServerSeat(each, address) for each, address in enumerate(addresses)]
    return seats, DataTierAddress(tuple(addresses), (None,) * number)


@dataclass(frozen=True)
class RemoteDataServer:
    """One that another command has started, on this machine or another."""

    address: str
    keys: ClientCredentials
