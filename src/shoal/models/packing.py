"""Older versions as differences to newer ones: what a training moved by little takes less room.

    digits:1 --delta--> digits:2 --delta--> digits:3 (whole)

Whole stay the newest version of each name and all that an alias, a run or a server uses, because they are the ones to
be loaded. A version reads as before, bit by bit; only the way its chunks are stored changes, never their digests.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from shoal.core.errors import UsageError
from shoal.models import deltas
from shoal.models.blobs import LONGEST_CHAIN
from shoal.models.errors import RegistryError
from shoal.models.locks import is_held, locked
from shoal.models.registry import Registry
from shoal.models.remote_blobs import RemoteBlobs
from shoal.models.version import Manifest, ModelVersion

WORTH_IT = 0.9
"""A delta of more than this share of the chunk is not stored: it would make reading slower for nothing."""
_WIDTHS = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Bytes of a number; four for all others."""


class PackingResult(msgspec.Struct, frozen=True):
    """What a packing did."""

    chunks: int
    """Stored as deltas now."""
    before: int
    """Bytes that they took."""
    after: int


def pack(registry: Registry, name: str | None = None) -> PackingResult:
    """Store chunks of older versions, of one name or all, as deltas; versions must not change meanwhile."""
    if not registry.exists():
        return PackingResult(0, 0, 0)
    if isinstance(registry.blobs, RemoteBlobs):
        raise UsageError(f"blobs in {registry.blobs.url} cannot be packed; only a registry with its own folder can")
    # Exclusive, because a blob must not become a base or go while a writer counts on it.
    with locked(registry.root, exclusive=True):
        versions = registry.list()
        for digest in registry.blobs.digests():
            registry.blobs.drop_second_copy(digest)
        try:
            return _pack(registry, versions, [each for each in versions if name in (None, each.name)])
        except OSError as error:
            raise RegistryError(f"cannot pack {registry.root}: {error.strerror}; every version is whole") from None


def _pack(registry: Registry, versions: list[ModelVersion], chosen: list[ModelVersion]) -> PackingResult:
    newest = {each.ref for each in _newest(versions)}
    whole = registry.used([each for each in versions if each.ref in newest or _is_loaded(registry, each)])
    heights = _heights(registry)
    chunks, before, after = 0, 0, 0
    for old, base, width in _candidates(registry, chosen):
        # What will be loaded stays whole, because undoing deltas makes loading slower.
        if old in whole or not _may_stand_on(registry, old, base, heights.get(old, 0)):
            continue
        content = registry.blobs.read(old)
        delta = deltas.encode(content, registry.blobs.read(base), base, width)
        if len(delta) <= WORTH_IT * len(content):
            registry.blobs.replace_by_delta(old, delta)
            # What stood on `old` now stands on all that `old` stands on.
            for height, each in enumerate(registry.blobs.chain(old), heights.get(old, 0) + 1):
                heights[each] = max(heights.get(each, 0), height)
            chunks, before, after = chunks + 1, before + len(content), after + len(delta)
    return PackingResult(chunks, before, after)


def _newest(versions: list[ModelVersion]) -> list[ModelVersion]:
    found: dict[str, ModelVersion] = {}
    for version in versions:  # newest first
        found.setdefault(version.name, version)
    return list(found.values())


def _is_loaded(registry: Registry, version: ModelVersion) -> bool:
    return bool(version.aliases) or is_held(registry.root, version.digest)


def _heights(registry: Registry) -> dict[str, int]:
    """For each blob, how many deltas stand on it, one on the other."""
    heights: dict[str, int] = {}
    for digest in registry.blobs.digests():
        for height, base in enumerate(registry.blobs.chain(digest), 1):
            heights[base] = max(heights.get(base, 0), height)
    return heights


def _candidates(registry: Registry, versions: list[ModelVersion]) -> Iterator[tuple[str, str, int]]:
    """(chunk, the same place in the next version, bytes of a number), newest versions first."""
    names = dict.fromkeys(version.name for version in versions)
    for name in names:
        manifests = (registry.manifest(version) for version in versions if version.name == name)
        for newer, older in pairwise(manifests):
            yield from _pairs(older, newer)


def _pairs(older: Manifest, newer: Manifest) -> Iterator[tuple[str, str, int]]:
    entries = {entry.name: entry for entry in newer.tensors}
    seen: set[str] = set()
    for entry in older.tensors:
        other = entries.get(entry.name)
        # Only then do chunks hold the same numbers at the same places.
        if other is None or (entry.dtype, entry.shape, entry.key) != (other.dtype, other.shape, other.key):
            continue
        for old, base in zip(entry.chunks, other.chunks, strict=False):
            if old != base and old not in seen and older.sizes[old] == newer.sizes[base]:
                seen.add(old)
                yield old, base, _WIDTHS.get(entry.dtype, 4)


def _may_stand_on(registry: Registry, old: str, base: str, height: int) -> bool:
    """Whether `old`, on which `height` deltas stand, may become one without a circle or too long a chain."""
    if registry.blobs.base(old) is not None:
        return False
    below = registry.blobs.chain(base)
    return old not in below and len(below) + 1 + height <= LONGEST_CHAIN
