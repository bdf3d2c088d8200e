"""Versions from one registry to another: whatever the other has already is not copied.

Both sides are checked: a blob is read against its digest here and stored under the digest of what arrived there.
"""

import msgspec

from shoal.models.registry import Registry
from shoal.models.version import ModelVersion


class CopiedVersion(msgspec.Struct, frozen=True):
    """One version that was copied: under which number it stands where it went."""

    source: str
    target: str
    blobs: int
    """Copied: others were there."""
    bytes: int


def copy(source: Registry, target: Registry, version: ModelVersion, aliases: list[str] | None = None) -> CopiedVersion:
    """Copy one version, with these of its aliases; again is a no-op. Its digest stays, its number may be another."""
    blobs, size = 0, 0

    def read(digest: str) -> bytes:
        nonlocal blobs, size
        data = source.blobs.read(digest)
        blobs, size = blobs + 1, size + len(data)
        return data

    # Or a collection there could remove its blobs meanwhile.
    with source.hold(version):
        # By digest, which is the same in every registry; numbers belong to one.
        added = target.adopt(version.name, version.digest, read)
    for alias in aliases or ():
        target.tag(added.ref, alias)
    return CopiedVersion(version.ref, added.ref, blobs, size)
