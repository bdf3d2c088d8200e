"""The launcher's part of a run's record: workers that were lost, added or removed, and warnings."""

import time
from collections.abc import Sequence
from pathlib import Path

from shoal.core.clock import now
from shoal.core.event_sink import RunEvent
from shoal.core.events import RemoteWorkerEnded, WarningRaised, WorkerLost, WorkersScaled
from shoal.core.journal import EventJournal
from shoal.core.record import launcher_file


class LauncherRecord:
    """Of one attempt of a run. Every event is written at once: they are few, and the launcher may be killed."""

    def __init__(self, directory: Path, attempt: int) -> None:
        self._journal, self._attempt = EventJournal(launcher_file(directory)), attempt
        self._began = now()

    def write(self, event: RunEvent) -> None:
        self._journal.emit(event)
        self._journal.flush()

    def warn(self, text: str) -> None:
        self.write(WarningRaised(at=time.time(), text=text))

    def note_loss(self, text: str, worker: int, reason: str, step: int, quarantined: str) -> None:
        """Write which worker was lost, and in `text` what becomes of it."""
        self.write(
            WorkerLost(
                at=time.time(),
                text=text,
                worker=worker,
                reason=reason,
                step=step,
                second=now() - self._began,
                quarantined=quarantined,
                attempt=self._attempt,
            )
        )

    def note_scaled(self, text: str, added: Sequence[int], removed: Sequence[int]) -> None:
        """Write which workers the user has added, and which were asked to leave."""
        self.write(WorkersScaled(at=time.time(), text=text, added=tuple(added), removed=tuple(removed)))

    def note_remote_end(self, worker: int, step: int, fingerprint: str) -> None:
        """Write what a worker of another machine held at its end: its own record stays on that machine."""
        self.write(RemoteWorkerEnded(at=time.time(), worker=worker, step=step, fingerprint=fingerprint))

    def close(self) -> None:
        self._journal.close()
