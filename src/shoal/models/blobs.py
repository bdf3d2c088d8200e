"""Content-addressed blobs in a folder: the name of a file is the SHA-256 of its content.

    blobs/3f/3f86a0…        written as <name>.<random>.part, synced, renamed; then the folder is synced

The same content is stored once. Every read is checked against the name. Writers need no lock among themselves: each
has a part file of its own, and renaming onto a blob of the same name replaces equal bytes by equal bytes.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.core.disk import DISK, Buffer, Disk
from shoal.core.durable import PART
from shoal.models.errors import RegistryError

BATCH = 64 << 20
"""Bytes that may wait to become durable together."""
FILES = 64
"""Files that may."""
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
        """Store one blob, durably, unless it is here already; returns its digest."""
        with self.writing() as writer:
            return writer.put([data])

    @contextmanager
    def writing(self) -> "Iterator[BlobWriter]":
        """Store many: all are durable, or have left no part file, when the block ends."""
        writer = BlobWriter(self, self._disk)
        try:
            yield writer
            writer.finish()
        finally:
            writer.discard()

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


class BlobWriter:
    """Writes blobs in batches: all of a batch are handed to the kernel before the first is waited for.

    A blob that is here already was perhaps written by another process a moment ago: its folder is synced all the same.
    """

    def __init__(self, blobs: BlobFolder, disk: Disk) -> None:
        self._blobs, self._disk = blobs, disk
        self._pending: dict[str, tuple[int, Path]] = {}
        self._held = 0
        self._folders: set[Path] = set()

    def put(self, pieces: Sequence[Buffer]) -> str:
        """Write one blob, given in pieces, unless it is here already; returns its digest."""
        size, hashed = sum(len(piece) for piece in pieces), hashlib.sha256()
        for piece in pieces:
            hashed.update(piece)
        digest = hashed.hexdigest()
        path = self._blobs.path(digest)
        self._folders.add(path.parent)
        if digest in self._pending or self._blobs.size(digest) == size:
            return digest
        self._disk.make_folder(self._blobs.root)
        self._disk.make_folder(path.parent)
        part = path.with_name(f"{digest}.{secrets.token_hex(8)}{PART}")
        self._pending[digest] = (self._disk.create(part), part)
        for piece in pieces:
            self._disk.write(self._pending[digest][0], piece)
        self._held += size
        if self._held >= BATCH or len(self._pending) >= FILES:
            self._flush()
        return digest

    def _flush(self) -> None:
        """Give everything written so far its name, once its content is durable."""
        while self._pending:
            digest, (file, part) = next(iter(self._pending.items()))
            self._disk.sync(file)
            self._disk.close(file)
            del self._pending[digest]
            try:
                self._disk.rename(part, self._blobs.path(digest))
            except BaseException:
                self._disk.remove(part)
                raise
        self._held = 0

    def finish(self) -> None:
        """Return when all blobs that were put are durable."""
        self._flush()
        for folder in sorted(self._folders):
            self._disk.sync_folder(folder)
        if self._folders:
            self._disk.sync_folder(self._blobs.root)
            self._disk.sync_folder(self._blobs.root.parent)

    def discard(self) -> None:
        """Remove what was begun and not finished."""
        for file, part in self._pending.values():
            with contextlib.suppress(OSError):
                self._disk.close(file)
            with contextlib.suppress(OSError):
                self._disk.remove(part)
        self._pending.clear()
