"""How the machines that an engine has started by itself find the run: files in a folder that all of them see.

    head      FOLDER/3.key      address and invitation of machine 3: mode 0600, in a folder of mode 0700
    machine 3 reads and removes it

The folder belongs to one start of one job of the engine; the last machine to read removes it, or the head at the end.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.private_file import read_private, write_private
from shoal.launch.engines.base import JoinOrder

LARGEST = 8192
PAUSE, TRIES = 0.05, 100
"""Seconds between two looks for a file; how often the folder may be removed between making it and writing to it."""


class FileRendezvous:
    """In `runs`, the folder of runs, under a name that is this job's alone."""

    def __init__(self, runs: Path, job: str) -> None:
        self.folder = runs / f".{job}"

    def give(self, machine: str, order: JoinOrder) -> None:
        """Leave a machine's invitation where it looks for it; it appears whole or not at all."""
        for _ in range(TRIES):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self.folder / f"{machine}.part"
            part.unlink(missing_ok=True)
            try:
                write_private(part, f"{order.address}\n{order.secret}")
            except UsageError:
                if self.folder.is_dir():
                    raise
                continue  # another machine has just removed the folder, which was empty
            # A rename, so that no machine reads half of it.
            part.rename(self.folder / f"{machine}.key")
            return
        raise UsageError(f"cannot keep {str(self.folder)!r}: it was removed {TRIES} times; choose another --runs")

    def take(self, machine: str, deadline: Deadline) -> tuple[str, str]:
        """Address and invitation, once they are there."""
        file = self.folder / f"{machine}.key"
        while not deadline.expired:
            try:
                text = read_private(file, LARGEST).decode()
            except FileNotFoundError:
                self._refresh()
                time.sleep(PAUSE)
            else:
                # It is a secret, and read once.
                self._remove(file)
                address, _, secret = text.partition("\n")
                return address, secret
        raise UsageError(
            f"machine {machine} waited {deadline.budget:.0f} s for {str(file)!r}; all machines must share the folder "
            "of runs (--runs)"
        )

    def _remove(self, file: Path) -> None:
        """The folder too, if it is empty: an engine that kills the head leaves it no time to do so."""
        file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _refresh(self) -> None:
        """Shared file systems keep what a folder held for a while, unless it is listed again."""
        if self.folder.parent.is_dir():
            os.listdir(self.folder.parent)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
