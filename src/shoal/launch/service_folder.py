"""The folder in which services of one host listen: this user's alone, under a name that is known before it exists.

Workers are forked before it is known which services later plans have; they find those of a plan by its number.
"""

import secrets
import shutil
import tempfile
from pathlib import Path


class ServiceFolder:
    """Made when the first service is started; a run without services leaves nothing to clean up."""

    def __init__(self) -> None:
        # nobody can guess the name, and so nobody can be there first
        self.path = Path(tempfile.gettempdir()) / f"shoal-servers-{secrets.token_hex(8)}"
        self._is_made = False

    def open(self) -> None:
        self.path.mkdir(mode=0o700, exist_ok=self._is_made)
        self._is_made = True

    def clear(self, plan: int) -> None:
        """Remove the files of one plan's services."""
        for file in self.path.glob(f"{plan}-*"):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._is_made:
            shutil.rmtree(self.path, ignore_errors=True)
            self._is_made = False


def service_file(folder: Path | str, plan: int, number: int) -> str:
    """Where service `number` of the plan that the run was switched to for the `plan`-th time listens."""
    return f"{folder}/{plan}-{number}"
