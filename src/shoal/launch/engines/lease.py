"""Standard input as a lease: an engine writes an invitation to it and keeps it open. Its end means that the
engine, or the machine it runs on, is gone, and that this machine leaves the run."""

import os
import select

from shoal.core.errors import UsageError

LARGEST = 4096


class StdinLease:
    """Of an open pipe; `check` raises KeyboardInterrupt, as Ctrl-C would, once it has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._over = descriptor, False

    def check(self) -> None:
        # Never reads where it would wait: the launcher's thread calls this.
        if self._over or not select.select([self._descriptor], [], [], 0)[0]:
            return
        if not os.read(self._descriptor, LARGEST):
            self._over = True
            raise KeyboardInterrupt


def read_secret(descriptor: int) -> tuple[bytes, StdinLease | None]:
    """The text up to an empty line, and a lease; or up to the end, and none: then it was a plain file."""
    text = b""
    while b"\n\n" not in text:
        if len(text) > LARGEST:
            raise UsageError(f"standard input has more than {LARGEST} bytes and no key; give the text of an invitation")
        piece = os.read(descriptor, 1)  # byte by byte: whatever follows the text is not ours to take
        if not piece:
            return text, None
        text += piece
    lease = os.dup(descriptor)  # workers close standard input
    os.set_inheritable(lease, False)
    return text, StdinLease(lease)
