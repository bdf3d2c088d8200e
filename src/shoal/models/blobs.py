"""Content-addressed blobs in a folder: the name of a file is the SHA-256 of its content.

    blobs/3f/3f86a0…        written as <name>.<random>.part, synced, renamed; the folder is synced before `sync` returns

The same content is stored once. Every read is checked against the name. Writers need no lock among themselves: each
has a part file of its own, and renaming onto a blob of the same name replaces equal bytes by equal bytes.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.core.disk import DISK, Buffer, Disk
from shoal.core.durable import PART, write_new
from shoal.models.errors import RegistryError

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


class BlobFolder:
    """Blobs below `root`, which is made with the first of them."""

    def __init__(self, root: Path, disk: Disk = DISK) -> None:
        self.root, self._disk = root, disk

    def path(self, digest: str) -> Path:
        """Where a blob lies; anything that is not a SHA-256 in hexadecimal is refused."""
        if not is_digest(digest):
            raise RegistryError(f"{digest[:80]!r} is not a SHA-256; the index or manifest it stands in is damaged")
        return self.root / digest[:2] / digest

    def size(self, digest: str) -> int | None:
        """Bytes of a stored blob; None if it is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def put(self, data: Buffer) -> str:
        """Store `data` unless it is here already; returns its digest. Durable after the next `sync` that names it."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if self.size(digest) == len(data):
            return digest
        self._disk.make_folder(self.root)
        self._disk.make_folder(path.parent)
        part = path.with_name(f"{digest}.{secrets.token_hex(8)}{PART}")
        try:
            write_new(part, [data], self._disk)
            self._disk.rename(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.remove(part)
            raise
        return digest

    def sync(self, digests: Iterable[str]) -> None:
        """Return when these blobs are durable, also those that another process has written a moment ago."""
        for folder in sorted({self.path(digest).parent for digest in digests}):
            self._disk.sync_folder(folder)
        self._disk.sync_folder(self.root)
        self._disk.sync_folder(self.root.parent)

    def read(self, digest: str, largest: int | None = None) -> bytes:
        """The content of a blob, checked; RegistryError if it is missing, damaged or above `largest` bytes."""
        size = self.size(digest)
        if size is None:
            raise RegistryError(f"blob {digest[:12]} is missing in {self.root}; pull its version from another registry")
        if largest is not None and size > largest:
            raise RegistryError(f"blob {digest[:12]} has {size} bytes; at most {largest} are expected")
        try:
            data = self.path(digest).read_bytes()
        except OSError as error:
            raise RegistryError(f"blob {digest[:12]} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise RegistryError(
                f"blob {digest[:12]} is damaged: its SHA-256 differs; 'shoal models verify --repair' sets it aside"
            )
        return data

    def remove(self, digest: str) -> None:
        self._disk.remove(self.path(digest))

    def digests(self) -> Iterator[str]:
        """All blobs that are here."""
        return (path.name for path in self._files() if is_digest(path.name))

    def leftovers(self) -> Iterator[Path]:
        """Part files of writers that were killed; only without writers is each of them one."""
        return (path for path in self._files() if path.name.endswith(PART))

    def _files(self) -> Iterator[Path]:
        return (path for folder in sorted(self.root.glob("??")) for path in sorted(folder.iterdir()))
