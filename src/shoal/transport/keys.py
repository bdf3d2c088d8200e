"""Key pairs of CURVE, the elliptic-curve handshake by which ZeroMQ authenticates and encrypts connections.

A key file is readable only by its owner, from the moment it exists; a file that others could have read is refused.
There are two kinds: a pair (of a run, or of a machine), and an invitation, which is a pair for one machine with the
public key of the run it may join. The secret key of a run stays on the run's own machine.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import zmq

from shoal.core.errors import UsageError
from shoal.core.private_file import read_private, write_private

LARGEST_FILE = 4096
_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # the alphabet of Z85


@dataclass(frozen=True)
class CurveKeyPair:
    """A pair in ZeroMQ's printable form (Z85). Its repr does not contain the secret half."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        return cls(*zmq.curve_keypair())

    def write(self, path: Path) -> None:
        """Make the file, mode 0600; one that is there already stays as it is."""
        KeyFile(self).write(path)

    @classmethod
    def read(cls, path: Path) -> "CurveKeyPair":
        """Read a pair from a file that only this user can read, and that is not an invitation."""
        found = KeyFile.read(path)
        if found.run is not None:
            raise UsageError(
                f"{str(path)!r} is an invitation to join another machine's run, not a pair; make one with "
                "shoal keys new, or join with shoal join"
            )
        return found.keys


@dataclass(frozen=True)
class KeyFile:
    """The content of a key file."""

    keys: CurveKeyPair
    run: bytes | None = None
    """For an invitation: the public key of the run."""

    def write(self, path: Path) -> None:
        """Make the file, mode 0600; one that is there already stays as it is."""
        write_private(path, self.text)

    @property
    def text(self) -> str:
        """Return the file's text, which contains the secret."""
        head = "A key pair of Shoal" if self.run is None else "An invitation to a run of Shoal, for one machine"
        lines = [f"# {head}. Keep it to yourself."]
        lines += [f'run = "{self.run.decode()}"'] if self.run is not None else []
        lines += [f'public = "{self.keys.public.decode()}"', f'secret = "{self.keys.secret.decode()}"']
        return "\n".join(lines) + "\n"

    @classmethod
    def read(cls, path: Path, way_out: str = "make one with shoal keys new") -> Self:
        """Read a file that only this user can read; errors end with `way_out`."""
        try:
            data = read_private(path, LARGEST_FILE)
        except OSError as error:
            raise UsageError(f"cannot read the keys in {str(path)!r}: {error.strerror}; {way_out}") from None
        return cls.parse(data, repr(str(path)), way_out)

    @classmethod
    def parse(cls, data: bytes, name: str, way_out: str = "make one with shoal keys new") -> Self:
        """Parse the text of a key file, called `name` in errors."""
        try:
            found = msgspec.toml.decode(data, type=dict[str, str])
            keys = CurveKeyPair(check_key(found["public"].encode()), check_key(found["secret"].encode()))
            return cls(keys, check_key(found["run"].encode()) if "run" in found else None)
        except (msgspec.MsgspecError, KeyError, UsageError):
            raise UsageError(f"{name} is no key file; {way_out}") from None


def check_key(text: bytes) -> bytes:
    """Return a key in Z85, or raise UsageError."""
    if not _KEY.fullmatch(text):
        raise UsageError(f"{text[:50]!r} is no key; keys are 40 letters of Z85, as shoal keys new makes them")
    return text
