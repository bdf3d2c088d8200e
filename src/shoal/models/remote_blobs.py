"""Blobs behind an fsspec URL (`s3://bucket/models`, `gs://…`, `sftp://…`), for a registry whose index is a folder here.

    <url>/3f/3f86a0…      one object for each blob, named by the SHA-256 of its content
    <url>/registry.json   the id of the one registry that owns them

Object stores put an object whole or not at all; where a store does not, a torn one has another size or SHA-256, and
neither is believed. A second registry on the same URL is refused, because either would collect the other's blobs.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.disk import Buffer
from shoal.core.errors import UsageError
from shoal.models.blobs import BlobFolder, BlobWriter, check_digest, is_digest
from shoal.models.errors import RegistryError

OWNER = "registry.json"


class BlobOwner(msgspec.Struct, frozen=True):
    """Which registry the blobs of a URL belong to, and where they are."""

    blobs: str
    """The URL."""
    id: str


class RemoteBlobs(BlobFolder):
    """Blobs of one registry behind `owner.blobs`. They have no path here."""

    def __init__(self, owner: BlobOwner, root: Path) -> None:
        super().__init__(root)
        self.url = owner.blobs
        self._files_there, self._prefix = open_url(owner.blobs)

    def path(self, digest: str) -> Path:
        check_digest(digest)
        raise UsageError(f"blob {digest[:12]} is in {self.url} and has no path here; read() returns its content")

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/{check_digest(digest)[:2]}/{digest}"

    def size(self, digest: str) -> int | None:
        with talking_to(self.url):
            try:
                return int(self._files_there.info(self._key(digest))["size"])
            except FileNotFoundError:
                return None

    def stored(self, digest: str) -> int:
        return self.size(digest) or 0

    def base(self, digest: str) -> str | None:
        return None  # deltas are for folders

    def chain(self, digest: str) -> list[str]:
        return []

    def with_bases(self, used: set[str]) -> set[str]:
        return used

    @contextmanager
    def writing(self) -> "Iterator[BlobWriter]":
        yield RemoteWriter(self)

    def upload(self, digest: str, content: bytes) -> None:
        with talking_to(self.url):
            self._files_there.pipe_file(self._key(digest), content)

    def _content(self, digest: str) -> bytes:
        with talking_to(self.url):
            try:
                return bytes(self._files_there.cat_file(self._key(digest)))
            except FileNotFoundError:
                raise RegistryError(f"blob {digest[:12]} is missing in {self.url}; pull its version again") from None

    def is_sound(self, digest: str) -> bool:
        return hashlib.sha256(self._content(digest)).hexdigest() == digest

    def remove(self, digest: str) -> None:
        with talking_to(self.url):
            try:
                self._files_there.rm_file(self._key(digest))
            except FileNotFoundError:
                return

    def digests(self) -> Iterator[str]:
        with talking_to(self.url):
            self._files_there.invalidate_cache()  # other processes write there, too
            names = [str(path).rpartition("/")[2] for path in self._files_there.find(self._prefix)]
        return (name for name in names if is_digest(name))

    def leftovers(self) -> Iterator[Path]:
        return iter(())


class RemoteWriter(BlobWriter):
    """Every blob is durable as soon as the store has taken it."""

    def __init__(self, blobs: RemoteBlobs) -> None:
        self._remote = blobs

    def put(self, pieces: Sequence[Buffer]) -> str:
        content = b"".join(pieces)
        digest = hashlib.sha256(content).hexdigest()
        # By size: an upload that was torn is made again.
        if self._remote.size(digest) != len(content):
            self._remote.upload(digest, content)
        return digest

    def finish(self) -> None:
        """Nothing waits."""

    def discard(self) -> None:
        """Nothing was begun: what has no version is removed by `collect`."""


def open_url(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; UsageError if a library for it is missing."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        # Without the cache, because other processes write there too.
        files, prefix = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise UsageError(f"{scheme}:// needs a library: {error}; pip install 'shoal[s3]' for s3") from None
    except ValueError as error:
        raise UsageError(f"{url!r} is no place for blobs: {error}") from None
    return files, str(prefix).rstrip("/")


@contextmanager
def talking_to(url: str) -> Iterator[None]:
    """RegistryError, with the store's own words, for whatever goes wrong there."""
    try:
        yield
    except (RegistryError, UsageError):
        raise
    except Exception as error:  # noqa: BLE001  (every store has exceptions of its own)
        words = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise RegistryError(f"{url} failed: {words}; is it there, and may you use it?") from None


def claim(url: str) -> BlobOwner:
    """Make a place for the blobs of one registry; UsageError if another one has it."""
    files, prefix = open_url(url)
    owner = BlobOwner(url, secrets.token_hex(16))
    with talking_to(url):
        if files.exists(f"{prefix}/{OWNER}"):
            raise UsageError(f"{url} holds the blobs of another registry; give a place of its own")
        files.makedirs(prefix, exist_ok=True)
        files.pipe_file(f"{prefix}/{OWNER}", msgspec.json.encode(owner))
        # Read again: stores have no lock, and of two that claim at the same moment the last write stands.
        if msgspec.json.decode(files.cat_file(f"{prefix}/{OWNER}"), type=BlobOwner).id != owner.id:
            raise UsageError(f"{url} was taken by another registry at this moment; give a place of its own")
    return owner
