"""Key pairs of CURVE, the elliptic-curve handshake of ZeroMQ: who may talk to whom, and nobody listens in.

A key file is readable by its owner alone, from the moment it exists; one that others could have read is refused.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import zmq

from shoal.core.errors import UsageError

LARGEST_FILE = 4096
_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # the alphabet of Z85


@dataclass(frozen=True)
class Keys:
    """A pair, in ZeroMQ's printable form (Z85). The secret half never appears in a text made of it."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        return cls(*zmq.curve_keypair())

    def write(self, path: Path) -> None:
        """Make the file, mode 0600; one that is there already stays as it is."""
        text = f'# Of a Shoal worker. Keep it to yourself.\npublic = "{self.public.decode()}"\n'
        text += f'secret = "{self.secret.decode()}"\n'
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise UsageError(f"{str(path)!r} exists already; name another file, or remove it first") from None
        except OSError as error:
            raise UsageError(f"cannot write the keys to {str(path)!r}: {error.strerror}; name another file") from None
        with os.fdopen(handle, "w") as file:
            file.write(text)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The pair in a file that is this user's alone."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(
                f"cannot read the keys in {str(path)!r}: {error.strerror}; make them with shoal keys new"
            ) from None
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                raise UsageError(f"{str(path)!r} can be read by others, so its keys are no secret; make new ones")
            data = file.read(LARGEST_FILE)
        try:
            found = msgspec.toml.decode(data, type=dict[str, str])
            return cls(check_key(found["public"].encode()), check_key(found["secret"].encode()))
        except (msgspec.MsgspecError, KeyError, UsageError):
            raise UsageError(f"{str(path)!r} is no key file; make one with shoal keys new") from None


def check_key(text: bytes) -> bytes:
    """A key in Z85, or UsageError."""
    if not _KEY.fullmatch(text):
        raise UsageError(f"{text[:50]!r} is no key; keys are 40 letters of Z85, as shoal keys new makes them")
    return text
