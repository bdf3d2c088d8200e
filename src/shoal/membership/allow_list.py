"""Keys that may join a run: those the command names, and those of the file beside the run's key.

    run.key          the pair of the run: stays where it is
    run.key.allow    a line for each invitation: PUBLIC=WORKERS FILE-NAME
    laptop.key       an invitation: the run's public key and a pair of its own; goes to one machine

The coordinator looks at the file whenever somebody shows a key, so an invitation made while the run trains is good at
once, and one whose line is removed is good for no further connection.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.private_file import append_private, read_private
from shoal.transport.keys import CurveKeyPair, KeyFile, check_key

SUFFIX = ".allow"
LARGEST_FILE = 1 << 20
KEY_LETTERS = 40


class AllowList(Mapping[bytes, int]):
    """By public key: how many members may live under it at a time."""

    def __init__(self, named: Mapping[bytes, int], file: Path | None = None) -> None:
        """UsageError if the file, where there is one, cannot be believed."""
        self._named, self._file = dict(named), file
        self._listed: dict[bytes, int] = {}
        self._seen: tuple[int, int, int] | None = None
        self._read()

    def refresh(self) -> None:
        """Read the file again if it has changed; one that cannot be believed changes nothing."""
        try:
            self._read()
        except UsageError:
            return  # the coordinator has no terminal; the next start of the run reports it

    def _read(self) -> None:
        seen = self._status()
        if seen == self._seen:
            return
        # Before the file is read: one that cannot be believed is not read again until it changes.
        self._seen = seen
        self._listed = read_allowed(self._file) if seen is not None and self._file is not None else {}

    def _status(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            # lstat, because a link put in the file's place must show as a change.
            status = os.lstat(self._file)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def __getitem__(self, key: bytes) -> int:
        return self._named[key] if key in self._named else self._listed[key]

    def __iter__(self) -> Iterator[bytes]:
        # Keys of the command outrank the file, also where both name one.
        return iter({**self._listed, **self._named})

    def __len__(self) -> int:
        return len({*self._listed, *self._named})


def allow_file(run_key: Path) -> Path:
    """Where the invitations to a run are listed."""
    return run_key.with_name(run_key.name + SUFFIX)


def invite(run_key: Path, out: Path, workers: int = 1) -> KeyFile:
    """Make an invitation for one machine, good for so many workers, and list it beside the run's key."""
    run, invitation = CurveKeyPair.read(run_key), CurveKeyPair.new()
    made = KeyFile(invitation, run.public)
    made.write(out)
    try:
        append_private(allow_file(run_key), f"{invitation.public.decode()}={workers} {out.name}")
    except UsageError:
        out.unlink(missing_ok=True)  # it would open nothing
        raise
    return made


def read_allowed(file: Path) -> dict[bytes, int]:
    """All lines of a list; UsageError names the first that is none."""
    try:
        data = read_private(file, LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}; make it yours, mode 0600") from None
    if len(data) > LARGEST_FILE:
        raise UsageError(f"{str(file)!r} has more than {LARGEST_FILE} bytes; remove the lines of old invitations")
    found: dict[bytes, int] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            try:
                found.update([parse_allowed(line.split()[0])])
            except UsageError as error:
                raise UsageError(f"line {number} of {str(file)!r}: {error}") from None
    return found


def parse_allowed(word: str) -> tuple[bytes, int]:
    """`PUBLIC` or `PUBLIC=K`: a key, and how many workers it is good for (1)."""
    key, number = word[:KEY_LETTERS], word[KEY_LETTERS:]  # a key may hold an equals sign itself
    if number and not (number[0] == "=" and number[1:].isascii() and number[1:].isdecimal() and int(number[1:])):
        raise UsageError(f"{word[:60]!r}: write a public key of 40 letters, or that and =K for K workers")
    return check_key(key.encode()), int(number[1:] or 1)
