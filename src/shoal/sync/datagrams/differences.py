"""What a replica has changed by itself since a round began, and what it has heard of the changes of others.

    parameters = start + own + Σ heard[member]

A worker offers the *sum* of its changes, block by block, not each step's: a block that is lost is made up for by the
next one of the same place, one that comes twice or late changes nothing. So once nobody steps any more and every block
of everybody has come once, all replicas are start + the sum of all changes.

Pure arithmetic on flat arrays of float32, without a clock or a socket. One lock, because a thread sends and receives
while another trains.
"""

import threading
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
BLOCK = 336
"""Numbers in one block: with all that is round them, they fit into the frame of any network."""


class DifferenceBlocks:
    """Of one worker, for one round."""

    def __init__(self, size: int, members: Collection[str]) -> None:
        """`size`: numbers in all parameters; `members`: the others."""
        self.size, self.blocks = size, -(-size // BLOCK)
        padded = self.blocks * BLOCK
        self._own = np.zeros(padded, np.float32)
        self._heard = {member: np.zeros(padded, np.float32) for member in members}
        self._newest = {member: np.full(self.blocks, -1, np.int64) for member in members}
        self._arrived, self._spare = np.zeros(padded, np.float32), np.zeros(padded, np.float32)
        self._touched = False
        self._lock = threading.Lock()

    def offer(self, own: Values) -> None:
        """Note what this worker has changed since the round began."""
        with self._lock:
            self._own[: self.size] = own

    def changed(self) -> npt.NDArray[np.intp]:
        """Return the blocks in which this worker has changed anything."""
        with self._lock:
            return np.flatnonzero(self._own.reshape(self.blocks, BLOCK).any(axis=1))

    def own(self, block: int) -> bytes:
        """Return a block of this worker's changes, as it travels."""
        with self._lock:
            return self._own[block * BLOCK : (block + 1) * BLOCK].tobytes()

    def hear(self, member: str, number: int, block: int, values: Values) -> bool:
        """Take in a block of a member's changes; return False for one that is not newer than what is known."""
        # without the lock: only the thread that receives reads and writes this
        newest = self._newest[member]
        if number <= newest[block]:
            return False
        newest[block] = number
        place = slice(block * BLOCK, (block + 1) * BLOCK)
        with self._lock:
            self._arrived[place] += values - self._heard[member][place]
            self._heard[member][place] = values
            self._touched = True
        return True

    def take(self) -> Values | None:
        """Return what has come since the last call, to be added to the parameters before the next; None if nothing."""
        with self._lock:
            if not self._touched:
                return None
            # two arrays in turns: the caller reads one without the lock while the other fills
            self._arrived, self._spare, self._touched = self._spare, self._arrived, False
            self._arrived[:] = 0.0
            return self._spare[: self.size]
