"""Reading a worker's file while it grows: whole lines only, each once.

A line counts when its newline is there: a torn end is left until the rest arrives, or for ever. When the file was
compacted meanwhile, reading goes on with the first event that was not read; what was merged since is passed over.
"""

from collections.abc import Iterator
from pathlib import Path

from shoal.core.compaction import CompactedLayout, layout
from shoal.core.events import AnyEvent, decode

__all__ = ["JournalTail", "decode"]


class JournalTail:
    """Follows `path` from byte `offset`; the file may not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._layout: CompactedLayout | None = None

    def read(self) -> Iterator[AnyEvent]:
        """What is new; may be abandoned midway, the next call goes on from there."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            # Before every read, because the file may have been compacted since the last.
            self._find_place(layout(file))
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                if (event := decode(line)) is not None:
                    yield event

    def _find_place(self, now: CompactedLayout) -> None:
        before, self._layout = self._layout, now
        if before is None or before == now or not self.offset:
            return
        # The place in all that was ever written, which no compaction changes.
        read = before.stood + max(0, self.offset - before.head)
        self.offset = now.head + max(0, read - now.stood)
