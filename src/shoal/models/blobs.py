"""Content-addressed blobs in a folder: the name of a file is the SHA-256 of its content.

    blobs/3f/3f86a0…        written as <name>.<random>.part, synced, renamed; then the folder is synced
    blobs/3f/3f86a0….delta  instead of it: the difference to another blob (deltas.py), made by packing.py

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

from shoal.core.disk import DISK, Buffer, FileOperations
from shoal.core.durable import PART, write_new
from shoal.models import deltas
from shoal.models.errors import RegistryError

DELTA = ".delta"
# Bounds what one read costs, and ends a chain that damage has closed to a circle.
LONGEST_CHAIN = 16
"""Deltas that may have to be undone, one after the other, to read a blob."""
BATCH = 64 << 20
"""Bytes that may wait to become durable together."""
# Each waits with an open descriptor.
FILES = 64
"""Files that may."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def check_digest(digest: str) -> str:
    if not is_digest(digest):
        raise RegistryError(f"{digest[:80]!r} is not a SHA-256; the index or manifest it stands in is damaged")
    return digest


class BlobFolder:
    """Blobs below `root`, which is made with the first of them."""

    def __init__(self, root: Path, disk: FileOperations = DISK) -> None:
        self.root, self._disk = root, disk

    def path(self, digest: str) -> Path:
        """Where a blob lies; anything that is not a SHA-256 in hexadecimal is refused."""
        return self.root / check_digest(digest)[:2] / digest

    def delta_path(self, digest: str) -> Path:
        """Where its difference to another blob lies, if it is stored as one."""
        path = self.path(digest)
        return path.with_name(path.name + DELTA)

    def size(self, digest: str) -> int | None:
        """Bytes of a stored blob; None if it, or what its delta refers to, is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            try:
                chain = self.chain(digest)
            except RegistryError:
                return None
            return self.path(chain[-1]).stat().st_size if chain else None

    def stored(self, digest: str) -> int:
        """Bytes that a blob takes here, whole or as a delta."""
        paths = (self.path(digest), self.delta_path(digest))
        return sum(path.stat().st_size for path in paths if path.exists())

    def base(self, digest: str) -> str | None:
        """The blob that this one is stored as a difference to; None if it is whole or not here."""
        if self.path(digest).exists():
            return None
        try:
            with self.delta_path(digest).open("rb") as file:
                return deltas.header(file.read(deltas.HEADER))[0]
        except FileNotFoundError:
            return None

    def chain(self, digest: str) -> list[str]:
        """The blobs, each the base of the one before, that must be read for this one: the last of them is whole."""
        chain: list[str] = []
        while (base := self.base(chain[-1] if chain else digest)) is not None:
            chain.append(base)
            if len(chain) > LONGEST_CHAIN:
                raise RegistryError(f"blob {digest[:12]} stands on more than {LONGEST_CHAIN} others; it is damaged")
        if chain and not self.path(chain[-1]).exists():
            raise RegistryError(f"blob {digest[:12]} is a difference to {chain[-1][:12]}, which is missing")
        return chain

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
        data = self._content(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise RegistryError(
                f"blob {digest[:12]} is damaged: its SHA-256 differs; 'shoal models verify --repair' sets it aside"
            )
        return data

    def _content(self, digest: str) -> bytes:
        """Not checked against its digest."""
        try:
            try:
                return self.path(digest).read_bytes()
            except FileNotFoundError:  # whole files go when their delta is there, not before
                chain = self.chain(digest)
                content = self.path(chain[-1]).read_bytes() if chain else b""
                for each in [*reversed(chain[:-1]), digest]:
                    content = deltas.decode(self.delta_path(each).read_bytes(), content)
                return content
        except OSError as error:
            raise RegistryError(f"blob {digest[:12]} cannot be read: {error.strerror}") from None

    def is_sound(self, digest: str) -> bool:
        """Whether its own file is as it was written; what it is a difference to is not looked at."""
        try:
            if self.base(digest) is None:
                return hashlib.sha256(self.path(digest).read_bytes()).hexdigest() == digest
            deltas.check(self.delta_path(digest).read_bytes())
        except (OSError, RegistryError):
            return False
        return True

    def replace_by_delta(self, digest: str, delta: bytes) -> None:
        """Store a blob as this delta from now on; at every moment one of both is whole and durable."""
        target = self.delta_path(digest)
        part = target.with_name(f"{target.name}.{secrets.token_hex(8)}{PART}")
        try:
            write_new(part, [delta], self._disk)
            self._disk.rename(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.remove(part)
            raise
        # The delta's name must be durable before the whole file goes.
        self._disk.sync_folder(target.parent)
        self._disk.remove(self.path(digest))

    def drop_second_copy(self, digest: str) -> None:
        """Of a blob that is here whole and as a delta, which only a crash or a repair leaves, drop the delta."""
        if self.path(digest).exists():
            self._disk.remove(self.delta_path(digest))

    def with_bases(self, used: set[str]) -> set[str]:
        """These blobs and all that they are stored as differences to."""
        found, waiting = set(used), list(used)
        while waiting:
            base = self.base(waiting.pop())
            if base is not None and base not in found:
                found.add(base)
                waiting.append(base)
        return found

    def remove(self, digest: str) -> None:
        self._disk.remove(self.path(digest))
        self._disk.remove(self.delta_path(digest))

    def digests(self) -> Iterator[str]:
        """All blobs that are here."""
        names = (path.name.removesuffix(DELTA) for path in self._files())
        return iter(dict.fromkeys(name for name in names if is_digest(name)))

    def leftovers(self) -> Iterator[Path]:
        """Part files of writers that were killed; only without writers is each of them one."""
        return (path for path in self._files() if path.name.endswith(PART))

    def _files(self) -> Iterator[Path]:
        return (path for folder in sorted(self.root.glob("??")) for path in sorted(folder.iterdir()))


class BlobWriter:
    """Writes blobs in batches: all of a batch are handed to the kernel before the first is waited for.

    A blob that is here already was perhaps written by another process a moment ago: its folder is synced all the same.
    """

    def __init__(self, blobs: BlobFolder, disk: FileOperations) -> None:
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
        # The size too: a crash of another writer cannot leave a short blob under this name, but a damaged disk can.
        if digest in self._pending or self._blobs.size(digest) == size:
            return digest
        self._disk.make_folder(self._blobs.root)
        self._disk.make_folder(path.parent)
        # In the blob's own folder, because a rename is atomic within one file system only.
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
            # One at a time and still pending until synced, so that `discard` finds what an error leaves.
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
            # The folders themselves may be new, and a name is durable only once its parent is synced.
            self._disk.sync_folder(self._blobs.root.parent)

    def discard(self) -> None:
        """Remove what was begun and not finished."""
        for file, part in self._pending.values():
            with contextlib.suppress(OSError):
                self._disk.close(file)
            with contextlib.suppress(OSError):
                self._disk.remove(part)
        self._pending.clear()
