"""The registry: an index of versions beside a folder of blobs. See `shoal.models` for how it is used.

    models/index.sqlite   names, versions, aliases, lineage (docs/registry.md)
    models/blobs/         chunks, files and manifests by SHA-256
    models/lock, holds/   locks between processes

A version is added in one order: chunks durable, manifest durable, row committed. A crash before the last leaves blobs
that no row refers to, which `collect` removes; a version that can be seen is whole.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.core.disk import DISK, Buffer, FileOperations
from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.models.errors import RegistryError
from shoal.models.index import VersionChange, VersionIndex
from shoal.models.locks import VersionHold, is_held, locked
from shoal.models.registry_places import models_root, open_blobs, open_index, write_places
from shoal.models.version import (
    LARGEST_MANIFEST,
    FileEntry,
    Lineage,
    Manifest,
    ModelRef,
    ModelVersion,
    decode_manifest,
)

if TYPE_CHECKING:
    from torch import Tensor

PutBlob = Callable[[Sequence[Buffer]], str]
Versions = list[ModelVersion]
Changes = list[VersionChange]

FILE_CHUNK = 16 << 20
"""Bytes of a file in one blob."""


class Registry:
    """Versions in one folder, which the first `add` makes. May be used by any number of processes and threads."""

    def __init__(self, url: str | os.PathLike[str] | None = None, disk: FileOperations = DISK) -> None:
        self.root = models_root(url).absolute()
        self.blobs = open_blobs(self.root, disk)
        self._index = open_index(self.root)

    @property
    def index(self) -> VersionIndex:
        """For queries, which read only."""
        return self._index

    def exists(self) -> bool:
        return self._index.exists()

    def create(self) -> None:
        """Make the folder and an empty index, unless they are there."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(f"cannot make {self.root}: {error.strerror}; set SHOAL_MODELS") from None
        if not self._index.exists():
            with locked(self.root, exclusive=True):
                self._index.create()

    def add(
        self,
        name: str,
        tensors: "Mapping[str, Tensor] | None" = None,
        *,
        files: Mapping[str, bytes] | None = None,
        lineage: Lineage | None = None,
        metrics: Mapping[str, float] | None = None,
        note: str = "",
    ) -> ModelVersion:
        """Store tensors (a `state_dict`) and files as the next version of `name`; durable when this returns."""
        from shoal.models.chunks import pack

        check_id(name, "model name")
        if not tensors and not files:
            raise UsageError(f"{name!r} has neither tensors nor files; give a state_dict()")

        def build(put: PutBlob, sizes: dict[str, int]) -> Manifest:
            return Manifest(
                created=time.time(),
                tensors=pack(tensors or {}, put),
                files=[_store(file, data, put) for file, data in sorted((files or {}).items())],
                lineage=lineage or Lineage(),
                metrics={key: float(value) for key, value in (metrics or {}).items()},
                note=note,
                sizes=sizes,
            )

        return self._commit(name, build)

    def _commit(self, name: str, build: Callable[[PutBlob, dict[str, int]], Manifest]) -> ModelVersion:
        self.create()
        sizes: dict[str, int] = {}

        try:
            # Shared by writers: it only keeps a collection from removing blobs that have no row yet.
            with locked(self.root, exclusive=False):
                with self.blobs.writing() as writer:

                    def put(pieces: Sequence[Buffer]) -> str:
                        digest = writer.put(pieces)
                        sizes[digest] = sum(len(piece) for piece in pieces)
                        return digest

                    manifest = build(put, sizes)
                    encoded = manifest.encode()
                    # Readers refuse a larger one, so it must not be stored.
                    if len(encoded) > LARGEST_MANIFEST:
                        raise UsageError(f"{name!r} has too many tensors: its manifest would have {len(encoded)} bytes")
                    digest = writer.put([encoded])
                number = self._index.add(name, digest, manifest, sizes | {digest: len(encoded)})
        except OSError as error:
            raise RegistryError(
                f"cannot store {name!r} in {self.root}: {error.strerror or error}; nothing was added"
            ) from None
        return self.get(f"{name}:{number}")

    def adopt(self, name: str, digest: str, read: Callable[[str], bytes]) -> ModelVersion:
        """Add a version of another registry, whose blobs `read` returns; blobs that are here are not read."""
        data = read(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise RegistryError(f"what came for {digest[:12]} is not the manifest of {name!r}; nothing was added")
        manifest = decode_manifest(data, digest)

        def build(put: PutBlob, sizes: dict[str, int]) -> Manifest:
            # A blob that is here with the right size is believed: `read` checks every byte when it is used.
            for blob, size in manifest.sizes.items():
                if self.blobs.size(blob) == size:
                    sizes[blob] = size
                elif put([read(blob)]) != blob or sizes[blob] != size:
                    raise RegistryError(f"blob {blob[:12]} of {name!r} is damaged there; nothing was added")
            return manifest

        return self._commit(check_id(name, "model name"), build)

    def get(self, ref: str) -> ModelVersion:
        """The version that `digits`, `digits:3` or `digits@prod` stands for; UsageError if there is none."""
        parsed = ModelRef.parse(ref)
        found = self._index.find(parsed)
        if found is None:
            raise self._index.missing(parsed, ref)
        return found

    def find(self, ref: str) -> ModelVersion | None:
        """As `get`; None if there is none."""
        return self._index.find(ModelRef.parse(ref))

    def list(self, name: str | None = None) -> Versions:
        """All versions, or those of one name, newest first."""
        return self._index.select(None if name is None else check_id(name, "model name"))

    def manifest(self, version: ModelVersion) -> Manifest:
        """What the version consists of, with its whole lineage."""
        return decode_manifest(self.blobs.read(version.digest, LARGEST_MANIFEST), version.digest)

    def tensors(self, version: ModelVersion) -> "dict[str, Tensor]":
        """Its tensors, every byte checked."""
        from shoal.models.chunks import unpack

        manifest = self.manifest(version)
        return unpack(manifest.tensors, lambda digest: self.blobs.read(digest, manifest.sizes[digest]))

    def file(self, version: ModelVersion, name: str) -> bytes:
        """A file stored with it; UsageError names those there are."""
        manifest = self.manifest(version)
        for entry in manifest.files:
            if entry.name == name:
                return b"".join(self.blobs.read(digest, manifest.sizes[digest]) for digest in entry.chunks)
        names = ", ".join(entry.name for entry in manifest.files) or "none"
        raise UsageError(f"{version.ref} has no file {name!r}; it has {names}")

    def lineage(self, version: ModelVersion) -> Versions:
        """The versions it was trained from, as far as they are here: its parent first."""
        ancestors: Versions = []
        seen = {version.digest}
        parent = version.parent
        # A damaged index may hold a circle of parents.
        while parent and parent not in seen and (found := self._index.by_digest(parent)) is not None:
            ancestors.append(found)
            seen.add(parent)
            parent = found.parent
        return ancestors

    def tag(self, ref: str, alias: str) -> ModelVersion:
        """Let `name@alias` stand for this version from now on."""
        version = self.get(ref)
        self._index.tag(version, check_id(alias, "alias"))
        return self.get(version.ref)

    def untag(self, ref: str) -> ModelVersion:
        """Remove the alias `name@alias`; the version stays."""
        parsed = ModelRef.parse(ref)
        if parsed.alias is None:
            raise UsageError(f"{ref!r} is not an alias; write NAME@ALIAS")
        version = self.get(ref)
        self._index.untag(version, parsed.alias)
        return self.get(version.ref)

    def remove(self, ref: str) -> ModelVersion:
        """Forget a version; its blobs go with the next `collect`. Refused while an alias or a process needs it."""
        version = self.get(ref)
        if version.aliases:
            alias = f"{version.name}@{version.aliases[0]}"
            raise UsageError(f"{version.ref} is {alias}; first 'shoal models tag --delete {alias}'")
        # A hold is taken under the shared lock, so none can appear between the look and the removal.
        with locked(self.root, exclusive=True):
            if is_held(self.root, version.digest):
                raise UsageError(f"{version.ref} is in use by a run or server; stop that first")
            self.forget(version)
        return version

    def forget(self, version: ModelVersion) -> None:
        """Remove the row of a version that is not needed; the caller has the exclusive lock."""
        self._index.remove(version)

    def used(self, versions: Versions) -> set[str]:
        """Digests of the blobs that these versions need."""
        return self._index.used({(version.name, version.version) for version in versions})

    def hold(self, version: ModelVersion) -> VersionHold:
        """Keep the version from being removed until the hold is closed or this process ends."""
        with locked(self.root, exclusive=False):  # between `remove` looking for holds and removing
            self.get(version.ref)
            return VersionHold(self.root, version.digest)

    def changes(self, since: int = 0) -> Changes:
        """What happened after change number `since`: versions added and removed, aliases set and removed."""
        return self._index.changes(since)

    def follow(self, ref: str, *, interval: float = 1.0, stop: threading.Event | None = None) -> Iterator[ModelVersion]:
        """The version `ref` stands for, now and whenever that changes, until `stop` is set.

        Looks every `interval` seconds. A moment in which `ref` stands for nothing is passed over.
        """
        stop = stop or threading.Event()
        seen = ""
        while not stop.is_set():
            found = self.find(ref)
            if found is not None and found.digest != seen:
                seen = found.digest
                yield found
            # Ends at once when `stop` is set.
            stop.wait(interval)


def init_registry(url: str | os.PathLike[str] | None, blobs: str | None = None, index: str | None = None) -> Registry:
    """Make a registry whose blobs are behind an fsspec URL, or whose index is in PostgreSQL, or both; UsageError if
    there is one already, here or there."""
    registry = Registry(url)
    if registry.exists():
        raise UsageError(f"{registry.root} is a registry already; pull its versions into a new one")
    write_places(registry.root, blobs, index)
    made = Registry(url)
    made.create()
    return made


def _store(name: str, data: bytes, put: PutBlob) -> FileEntry:
    pieces = [data[at : at + FILE_CHUNK] for at in range(0, len(data), FILE_CHUNK)]
    return FileEntry(check_id(name, "file name"), len(data), [put([piece]) for piece in pieces])
