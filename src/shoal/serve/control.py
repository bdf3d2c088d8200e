"""What was decided about the versions of each model: by a person, or by a rule. All processes of a server read it.

One file, replaced as a whole under a lock; a process alone keeps it in memory. A process that starts later, or in place
of a killed one, reads what holds.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.serve.rollout import RolloutState


class ModelControl(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one model."""

    pinned: int | None = None
    """The version that was rolled back to, until somebody follows the newest again."""
    reason: str = ""
    """Why the last decision was made."""
    rollout: RolloutState = RolloutState()
    """Where the stages of a new version are."""


Change = Callable[[ModelControl], ModelControl]
_DECODER = msgspec.json.Decoder(dict[str, ModelControl])
NOTHING = ModelControl()


class SharedControl:
    """Read by all, changed under a lock."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._own: dict[str, ModelControl] = {}

    def read(self) -> dict[str, ModelControl]:
        if self._folder is None:
            return self._own
        try:
            return _DECODER.decode((self._folder / "control.json").read_bytes())
        except FileNotFoundError:
            return {}

    def change(self, name: str, change: Change) -> ModelControl:
        """Decide something about a model: `change` gets what holds now."""
        if self._folder is None:
            return self._write(name, change)
        # A file of its own, because the content's file is replaced and a lock on it would go with the old one.
        with (self._folder / "control.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._write(name, change)

    def _write(self, name: str, change: Change) -> ModelControl:
        # Read again under the lock: another process may have decided meanwhile.
        known = {**self.read()}
        known[name] = change(known.get(name, NOTHING))
        self._own = known
        if self._folder is not None:
            scratch = self._folder / f"control.{os.getpid()}"
            scratch.write_bytes(msgspec.json.encode(known))
            # Readers take no lock, so they must find the old content or the new.
            os.replace(scratch, self._folder / "control.json")
        return known[name]
