"""The address book: where every worker listens, and the public key by which it is known there.

On one host the addresses are files in a folder that only the user can enter, so no keys are needed; between hosts
every entry has one, and a book that mixes them up is refused.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """One worker."""

    address: str
    """`tcp://10.77.0.1:7700` or `ipc:///tmp/…/0`."""
    public: bytes = b""
    host: str = ""
    """The name of its host, for messages."""
    member: str = ""
    """Its id, where the members of the run may change: who takes a lost one's place has another."""

    @property
    def here(self) -> bool:
        """Whether it is reached through a file of this host."""
        return self.address.startswith("ipc://")


Book = Mapping[int, Entry]


def check_book(book: Book) -> None:
    """Refuse what would send anything in the clear over a network."""
    for rank, entry in book.items():
        if not entry.here and not entry.public:
            raise UsageError(f"worker {rank} at {entry.address} has no key; between hosts every worker needs one")
        if entry.here:
            _private(Path(entry.address.removeprefix("ipc://")).parent)


def book_in(folder: Path, size: int) -> dict[int, Entry]:
    """Addresses for `size` workers of this host, in a folder made for the user alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return {rank: Entry(f"ipc://{folder}/{rank}") for rank in range(size)}


def _private(folder: Path) -> None:
    status = os.stat(folder)
    if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
        raise UsageError(f"{str(folder)!r} is open to others; sockets need a folder of mode 0700")
