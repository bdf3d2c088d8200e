"""What makes a checkpoint whole: the list of its shards, with size and SHA-256 of each, bound to run, step and plan.

runs/<id>/checkpoints/step-000000000500/          named so when everything in it is durable
    worker-0.safetensors   model, optimizers, schedulers, and worker 0's own state
    worker-1.safetensors   worker 1's own state: random streams, codecs
    worker-1.rows          the part of tables on servers that worker 1 has written, where there are any
    manifest.json          written last

The loader takes the newest that verifies and says why it passed over others. A shard of another step, another run or
another number of workers has another checksum than the manifest wants, so mixtures never load.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.core.durable import PART
from shoal.core.errors import ShoalError

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST_MANIFEST = 1 << 20
_NAME = re.compile(r"step-(\d{12})")


class CheckpointDamaged(ShoalError):  # noqa: N818  (a fact about a file, not a mistake of ours)
    """A checkpoint that must not be used; the message names step and file."""


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of a checkpoint."""

    name: str
    size: int
    sha256: str
    rows: "ShardEntry | None" = None
    """This worker's part of the tables on servers (`tables.py`), where there are any."""


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What belongs together."""

    format: int
    run: str
    step: int
    epoch: int
    samples: int
    workers: int
    plan: str
    seed: int
    shards: list[ShardEntry]


class _SealedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: CheckpointManifest
    sha256: str


def checkpoints(directory: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return directory / "checkpoints"


def folder_of(directory: Path, step: int) -> Path:
    return checkpoints(directory) / f"step-{step:012d}"


def shard_name(rank: int) -> str:
    return f"worker-{rank}.safetensors"


def rows_name(rank: int) -> str:
    return f"worker-{rank}.rows"


def seal(manifest: CheckpointManifest) -> bytes:
    """The manifest's file."""
    return msgspec.json.encode(_SealedManifest(manifest, _digest(manifest)))


def _digest(manifest: CheckpointManifest) -> str:
    return hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()


def read_manifest(folder: Path) -> CheckpointManifest:
    """A checkpoint's manifest, if not a bit of it has changed."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            # one byte more than allowed tells that the file is too long
            data = file.read(LARGEST_MANIFEST + 1)
        sealed = msgspec.json.decode(data, type=_SealedManifest)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{folder.name} has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{folder.name}/{MANIFEST} cannot be read: {error}") from None
    manifest = sealed.manifest
    # the digest covers values only; bytes are compared as well, so that not even a blank may change
    if len(data) > LARGEST_MANIFEST or msgspec.json.encode(sealed) != data or sealed.sha256 != _digest(manifest):
        raise CheckpointDamaged(f"{folder.name}/{MANIFEST} is damaged: its checksum does not fit")
    if manifest.format != FORMAT:
        raise CheckpointDamaged(f"{folder.name} has format {manifest.format}; this version reads {FORMAT}")
    if folder.name != f"step-{manifest.step:012d}":
        raise CheckpointDamaged(f"{folder.name} holds the manifest of step {manifest.step}")
    if [shard.name for shard in manifest.shards] != [shard_name(rank) for rank in range(manifest.workers)]:
        raise CheckpointDamaged(f"{folder.name} lists {len(manifest.shards)} shards for {manifest.workers} workers")
    return manifest


def read_shard(folder: Path, shard: ShardEntry) -> bytes:
    """The bytes of a shard, if they are the ones that were written."""
    try:
        with (folder / shard.name).open("rb") as file:
            data = file.read(shard.size + 1)
    except OSError as error:
        raise CheckpointDamaged(f"{folder.name}/{shard.name} cannot be read: {error.strerror}") from None
    if len(data) != shard.size:
        found = "longer" if len(data) > shard.size else f"{len(data)} bytes"
        raise CheckpointDamaged(f"{folder.name}/{shard.name} is {found}, and should have {shard.size}")
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise CheckpointDamaged(f"{folder.name}/{shard.name} is damaged or of another step: its checksum does not fit")
    return data


def verify(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint every byte of which is right; Damaged if not."""
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        read_shard(folder, shard)
        if shard.rows is not None:
            check_file(folder, shard.rows)
    return manifest


def check_file(folder: Path, entry: ShardEntry) -> None:
    """As `read_shard`, of a file that may be larger than the memory; Damaged if it is not what was written."""
    # a name in a manifest must not lead out of its folder
    if "/" in entry.name or entry.name.startswith("."):
        raise CheckpointDamaged(f"{folder.name} lists {entry.name!r}, which is no file of it")
    try:
        with (folder / entry.name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise CheckpointDamaged(f"{folder.name}/{entry.name} cannot be read: {error.strerror}") from None
    if (size, found) != (entry.size, entry.sha256):
        raise CheckpointDamaged(f"{folder.name}/{entry.name} is damaged or of another step: its checksum does not fit")


def listed(directory: Path) -> list[Path]:
    """The checkpoints of a run, newest first, whole or not."""
    try:
        found = [path for path in checkpoints(directory).iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    # steps have twelve digits in a name, so the order of names is theirs
    return sorted(found, reverse=True)


def newest(directory: Path, run: str) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of `run` that verifies, if any, and why newer ones were passed over."""
    reasons: list[str] = []
    for folder in listed(directory):
        try:
            manifest = verify(folder)
            if manifest.run != run:
                raise CheckpointDamaged(f"{folder.name} belongs to run {manifest.run!r}")
        except CheckpointDamaged as error:
            reasons.append(str(error))
        else:
            return folder, reasons
    return None, reasons


def unfinished(directory: Path) -> Iterator[Path]:
    """What a crash left half done."""
    return checkpoints(directory).glob(f"step-*{PART}")
