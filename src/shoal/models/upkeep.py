"""Upkeep of a registry: check every byte, and remove what nothing needs.

Needed are: versions with an alias, versions that a living process holds (a run that was started from one, a server),
the newest versions of each name as many as asked for, and every blob of a version that stays.
"""

import msgspec

from shoal.core.errors import UsageError
from shoal.models.errors import RegistryError
from shoal.models.locks import is_held, locked
from shoal.models.registry import Registry
from shoal.models.version import ModelVersion


class CollectionResult(msgspec.Struct, frozen=True):
    """What a collection removed, or would remove."""

    versions: list[str]
    blobs: int
    bytes: int


class DamagedVersion(msgspec.Struct, frozen=True):
    """Something that is wrong with a version."""

    ref: str
    problem: str


def verify(registry: Registry, versions: list[ModelVersion]) -> list[DamagedVersion]:
    """Read every byte of these versions; what they share is read once."""
    checked: dict[str, str] = {}
    found = []
    for version in versions:
        try:
            manifest = registry.manifest(version)
        except RegistryError as error:
            found.append(DamagedVersion(version.ref, str(error)))
            continue
        for digest, size in manifest.sizes.items():
            if digest not in checked:
                checked[digest] = _problem(registry, digest, size)
            if checked[digest]:
                found.append(DamagedVersion(version.ref, checked[digest]))
    return found


def _problem(registry: Registry, digest: str, size: int) -> str:
    try:
        registry.blobs.read(digest, size)
    except RegistryError as error:
        return str(error)
    return ""


def set_aside(registry: Registry) -> int:
    """Remove every blob that is damaged, so that adding or pulling its version again stores it anew; how many."""
    damaged = 0
    with locked(registry.root, exclusive=True):
        for digest in list(registry.blobs.digests()):
            if not registry.blobs.is_sound(digest):
                registry.blobs.remove(digest)
                damaged += 1
    return damaged


def collect(registry: Registry, keep: int | None = None, *, dry: bool = False) -> CollectionResult:
    """Remove versions beyond the newest `keep` of each name (None: all stay), then blobs that no version needs."""
    if keep is not None and keep < 1:
        raise UsageError(f"--keep {keep}: at least the newest version of each name stays; give 1 or more")
    if not registry.exists():
        return CollectionResult([], 0, 0)
    with locked(registry.root, exclusive=True):
        old = [version for version in _beyond(registry.list(), keep) if not is_held(registry.root, version.digest)]
        return _remove(registry, old, dry=dry)


def _beyond(versions: list[ModelVersion], keep: int | None) -> list[ModelVersion]:
    if keep is None:
        return []
    seen: dict[str, int] = {}
    old = []
    for version in versions:
        # `list` gives the newest first.
        seen[version.name] = seen.get(version.name, 0) + 1
        if seen[version.name] > keep and not version.aliases:
            old.append(version)
    return old


def _remove(registry: Registry, old: list[ModelVersion], *, dry: bool) -> CollectionResult:
    # A blob that no version uses may be the base of one that is stored as a delta.
    used = registry.blobs.with_bases(registry.used([each for each in registry.list() if each not in old]))
    unused = [digest for digest in registry.blobs.digests() if digest not in used]
    freed = sum(registry.blobs.stored(digest) for digest in unused)
    if not dry:
        for version in old:
            registry.forget(version)
        # rows first: a crash in between leaves blobs without a version, never a version without its blobs
        for digest in unused:
            registry.blobs.remove(digest)
        # Under the exclusive lock there are no writers, so every part file is of one that was killed.
        for part in list(registry.blobs.leftovers()):
            part.unlink(missing_ok=True)
    return CollectionResult([version.ref for version in old], len(unused), freed)
