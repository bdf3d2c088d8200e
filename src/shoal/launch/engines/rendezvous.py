"""How the machines that an engine has started by itself find the run: files in a folder that all of them see.

    head      FOLDER/3.key      address and invitation of machine 3: mode 0600, in a folder of mode 0700
    machine 3 reads and removes it

The folder belongs to one start of one job of the engine; the head removes it at the end.
"""

import os
import shutil
import time
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.private_file import read_private, write_private
from shoal.launch.engines.base import JoinOrder

LARGEST = 8192
PAUSE = 0.05


class FileRendezvous:
    """In `runs`, the folder of runs, under a name that is this job's alone."""

    def __init__(self, runs: Path, job: str) -> None:
        self.folder = runs / f".{job}"

    def give(self, machine: str, order: JoinOrder) -> None:
        """Leave a machine's invitation where it looks for it; it appears whole or not at all."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.folder / f"{machine}.part"
        part.unlink(missing_ok=True)
        write_private(part, f"{order.address}\n{order.secret}")
        part.rename(self.folder / f"{machine}.key")

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
                file.unlink(missing_ok=True)
                address, _, secret = text.partition("\n")
                return address, secret
        raise UsageError(
            f"machine {machine} waited {deadline.budget:.0f} s for {str(file)!r}; all machines must share the folder "
            "of runs (--runs)"
        )

    def _refresh(self) -> None:
        """Shared file systems keep what a folder held for a while, unless it is listed again."""
        if self.folder.parent.is_dir():
            os.listdir(self.folder.parent)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
