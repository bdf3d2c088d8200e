"""Gets a snapshot to the disk in a thread of its own, at most one at a time.

    worker r    shard -> fsync -> note with size and checksum, beside it
    worker 0    … waits for all notes -> manifest -> fsync -> the folder gets its name -> fsync -> old ones go

Hashing and writing leave the interpreter to the training thread. Whatever fails removes what was half done and is told
once; the training goes on, and the next interval tries again. The last good checkpoints are never touched.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from shoal.core.clock import Deadline, now
from shoal.core.disk import DISK, Buffer, FileOperations
from shoal.core.durable import PART, publish_folder, write_file, write_new
from shoal.train.checkpoint.manifest import (
    MANIFEST,
    CheckpointManifest,
    ShardEntry,
    checkpoints,
    folder_of,
    listed,
    rows_name,
    seal,
    shard_name,
    unfinished,
)
from shoal.train.checkpoint.shard import ShardError, pieces

# more than one, because the newest may turn out to be damaged
KEPT = 2
PATIENCE = 60.0
"""Seconds worker 0 waits for the shards of the others."""
LOOK = 0.02
NICE = 10


@dataclass(frozen=True)
class CheckpointResult:
    """What became of one checkpoint."""

    step: int
    seconds: float
    """From the snapshot to the end."""
    work: float
    """Processor seconds of the writing thread."""
    size: int
    error: str = ""


class CheckpointWriter:
    """The checkpoints of one worker. `after` is called before the manifest: what it refers to must be durable."""

    def __init__(
        self, directory: Path, rank: int, after: Callable[[], None] = lambda: None, disk: FileOperations = DISK
    ) -> None:
        self.directory, self.rank, self._after, self._disk = directory, rank, after, disk
        self._thread: threading.Thread | None = None
        self.last: CheckpointResult | None = None
        """Of the checkpoint that ended last, until it is taken away."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write_rows(self, step: int, name: str, content: Iterable[Buffer]) -> "ShardEntry | OSError":
        """Write a file beside this worker's shard, now; what went wrong is for `start`, which tells the others."""
        try:
            return write_hashed(_part(self.directory, step), name, content, self._disk)
        except OSError as failure:
            return failure

    def start(
        self,
        manifest: CheckpointManifest,
        tensors: Mapping[str, Tensor],
        texts: Mapping[str, str],
        rows: "ShardEntry | OSError | None" = None,
    ) -> None:
        """Begin to write; `manifest` says all but the shards. Not while `busy`."""

        def work() -> None:
            self.last = self.write(manifest, tensors, texts, rows)

        # a daemon: a disk that hangs must not keep the worker from ending
        self._thread = threading.Thread(target=work, name="shoal-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether what was begun ended within `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.busy

    def write(
        self,
        manifest: CheckpointManifest,
        tensors: Mapping[str, Tensor],
        texts: Mapping[str, str],
        rows: "ShardEntry | OSError | None" = None,
    ) -> CheckpointResult:
        """All of it, now; never raises for what the disk does."""
        _be_nice()
        # of this thread: what it waits costs the training nothing
        began, worked, step = now(), time.thread_time(), manifest.step
        part = _part(self.directory, step)
        size, error = 0, ""
        try:
            if isinstance(rows, OSError):
                raise rows
            shard = write_shard(part, self.rank, pieces(tensors, texts), self._disk, rows)
            size = shard.size + (rows.size if rows is not None else 0)
            if self.rank == 0:
                shards = [shard, *_others(part, manifest.workers)]
                self._after()
                commit(self.directory, msgspec.structs.replace(manifest, shards=shards), self._disk)
        except (OSError, ShardError) as failure:
            error = _reason(failure)
            self._give_up(part, error)
        return CheckpointResult(step, now() - began, time.thread_time() - worked, size, error)

    def _give_up(self, part: Path, reason: str) -> None:
        with contextlib.suppress(OSError):
            if self.rank == 0:
                self._disk.remove(part)
            else:
                self._disk.remove(part / shard_name(self.rank))
                self._disk.remove(part / rows_name(self.rank))
                # in place of the note, so that worker 0 need not wait until its patience ends
                write_file(part / _note_name(self.rank), reason.encode(), self._disk)


def clear(directory: Path, upto: int, disk: FileOperations = DISK) -> None:
    """Remove what crashes left half done; worker 0 does so before anybody writes.

    Checkpoints of steps after `upto`, where the run goes on, were passed over as damaged: they get another name, for
    these steps will be made again.
    """
    disk.make_folder(checkpoints(directory))
    for part in list(unfinished(directory)):
        disk.remove(part)
    for folder in listed(directory):
        if folder > folder_of(directory, upto):
            aside = folder.with_name(f"{folder.name}.damaged")
            disk.remove(aside)
            disk.rename(folder, aside)


def write_shard(
    part: Path, rank: int, content: Iterable[Buffer], disk: FileOperations = DISK, rows: ShardEntry | None = None
) -> ShardEntry:
    """One worker's file, durable, in a folder that has no name yet; a note beside it says what to expect."""
    shard = msgspec.structs.replace(write_hashed(part, shard_name(rank), content, disk), rows=rows)
    # worker 0 knows what it has written itself
    if rank:
        write_file(part / _note_name(rank), msgspec.json.encode(shard), disk)
    return shard


def write_hashed(part: Path, name: str, content: Iterable[Buffer], disk: FileOperations = DISK) -> ShardEntry:
    """A durable file, and its checksum."""
    disk.make_folder(part)
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterable[Buffer]:
        nonlocal size
        for piece in content:
            digest.update(piece)  # while it is written, or the whole shard would be read again
            size += len(piece)
            yield piece

    write_new(part / name, hashed(), disk)
    return ShardEntry(name, size, digest.hexdigest())


def commit(directory: Path, manifest: CheckpointManifest, disk: FileOperations = DISK) -> None:
    """Make a checkpoint of shards that are all there, and let the oldest go."""
    part = _part(directory, manifest.step)
    for rank in range(1, manifest.workers):
        disk.remove(part / _note_name(rank))  # a checkpoint is its shards and its manifest
    write_new(part / MANIFEST, [seal(manifest)], disk)
    publish_folder(part, folder_of(directory, manifest.step), disk)
    for old in listed(directory)[KEPT:]:
        # renamed first: a folder that is half removed must not look like a checkpoint
        gone = old.with_name(old.name + PART)
        disk.rename(old, gone)
        disk.remove(gone)


def _others(part: Path, workers: int) -> Sequence[ShardEntry]:
    """What the other workers wrote, as their notes say."""
    deadline = Deadline.after(PATIENCE)
    missing = set(range(1, workers))
    found: dict[int, ShardEntry] = {}
    while missing:
        for rank in sorted(missing):
            with contextlib.suppress(FileNotFoundError):
                note = (part / _note_name(rank)).read_bytes()
                if not note.startswith(b"{"):
                    raise OSError(0, f"worker {rank}: {note.decode(errors='replace')}")
                found[rank] = msgspec.json.decode(note, type=ShardEntry)
                missing.discard(rank)
        if missing and deadline.expired:
            raise OSError(0, f"worker {min(missing)} wrote nothing within {PATIENCE:.0f} s")
        time.sleep(LOOK if missing else 0)
    return [found[rank] for rank in sorted(found)]


def _part(directory: Path, step: int) -> Path:
    final = folder_of(directory, step)
    return final.with_name(final.name + PART)


def _note_name(rank: int) -> str:
    return f"worker-{rank}.note"


def _reason(failure: BaseException) -> str:
    return (failure.strerror or str(failure)) if isinstance(failure, OSError) else str(failure)


def _be_nice() -> None:
    """Let this thread take what the training leaves; only Linux knows priorities of threads."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
