"""Keeps a journal small: the older part of it is written anew, with its events merged, and the rest stays as it is.

    | event event event … event event | event event |        a journal that has grown too long
    | compacted | merged … merged     | event event |        what takes its place, by one rename

The first line tells how much of what was once written the merged part stands for: a reader that follows the file
finds its place again. Killed at any moment, the process leaves the old file or the new one.
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from shoal.core.disk import DISK, FileOperations
from shoal.core.durable import PART, write_new
from shoal.core.events import AnyEvent, FileCompacted, decode
from shoal.core.merging import merged

FIRST_WIDTH, THIN_WIDTH, WIDEST = 16, 4096, 1 << 40
"""Steps of a block: at first, from where on reports are thinned out too, and when there is no more to be gained."""
_encoder = msgspec.json.Encoder()


class CompactedLayout(NamedTuple):
    """The layout of a journal: its first `head` bytes replace the first `stood` bytes that were written to it."""

    head: int = 0
    stood: int = 0


def layout(file: BinaryIO) -> CompactedLayout:
    """How a journal is laid out; one that was never compacted stands for itself."""
    file.seek(0)
    line = file.readline()
    event = decode(line) if line.startswith(b'{"event":"compacted"') else None
    return (
        CompactedLayout(len(line) + event.size, event.stood) if isinstance(event, FileCompacted) else CompactedLayout()
    )


def compact(path: Path, through: int, target: int, disk: FileOperations = DISK) -> int:
    """Write `path`.part: all before byte `through` of the journal in about `target` bytes; gives where it stopped.

    The caller appends the journal's rest from there, and renames.
    """
    lines, end = _merge_file(path, through, FIRST_WIDTH)
    width = FIRST_WIDTH
    # What is merged may be merged again: figures are sums or means with their counts.
    # Four times as wide each time: a block of another block's multiple never splits one that is merged already.
    while sum(map(len, lines)) > target and width < WIDEST:
        width *= 4
        lines = _merge_lines(lines, width)
    with path.open("rb") as file:
        before = layout(file)
    # `stood` grows with every compaction: readers know their place in what was ever written, not in the file.
    head = FileCompacted(at=time.time(), stood=before.stood + end - before.head, size=sum(map(len, lines)))
    write_new(part_of(path), [_encoder.encode(head) + b"\n" + b"".join(lines)], disk)
    return end


def part_of(path: Path) -> Path:
    return path.with_name(path.name + PART)


def adopt(path: Path, end: int, disk: FileOperations = DISK) -> None:
    """Put what `compact` wrote in the journal's place, with the journal's bytes from `end` on."""
    part = part_of(path)
    try:
        # The caller's thread is the one that appends to the journal, so its end stays where it is meanwhile.
        file = disk.extend(part)
        try:
            with path.open("rb") as rest:
                rest.seek(end)
                disk.write(file, rest.read())
        finally:
            disk.close(file)
        disk.rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(part)
        raise


def _merge_file(path: Path, through: int, width: int) -> tuple[list[bytes], int]:
    """The merged lines before byte `through`, and where the last of them ended: at a line's end."""
    end = 0

    def events() -> Iterable[AnyEvent]:
        nonlocal end
        with path.open("rb") as file:
            for line in file:
                # A line that is not complete yet belongs to the rest, which the caller appends.
                if end + len(line) > through or not line.endswith(b"\n"):
                    return
                end += len(line)
                event = decode(line)
                if event is not None and not isinstance(event, FileCompacted):
                    yield event

    return _merge(events(), width), end


def _merge_lines(lines: list[bytes], width: int) -> list[bytes]:
    return _merge((event for line in lines if (event := decode(line)) is not None), width)


def _merge(events: Iterable[AnyEvent], width: int) -> list[bytes]:
    return [_encoder.encode(event) + b"\n" for event in merged(events, width, thin=width >= THIN_WIDTH)]
