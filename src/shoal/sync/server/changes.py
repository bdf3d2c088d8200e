"""Which elements of a shard have changed since some version, so that a pull need not bring the others again.

    changes.note(update, version)    this update has just made the shard's `version`
    changes.since(version)           places that may differ from that version; None: any may

A member says with its pull which version it holds (`PullRequest.held`), so a server remembers nothing of members, and
one that takes over from another simply sends everything once. What comes are the values themselves and not differences,
so the member has the server's bits. Do not use it where updates are dense: it reads every update once more and then
sends everything.
"""

import numpy as np
import numpy.typing as npt

from shoal.core.errors import PayloadError
from shoal.sync.server.rules.base import FloatArray
from shoal.wire import bits

FLOAT = 4
LAST_VERSION = 2**32 - 1
"""Versions beyond it are not told apart: everything is then sent."""
Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class ElementChanges:
    """Of one shard, whose rule leaves an element as it is where the update is 0."""

    def __init__(self, size: int, version: int = 0) -> None:
        """`version`: updates in the values now; what members hold of before is not known."""
        self._size, self._whole = size, version
        self._last: npt.NDArray[np.uint32] | None = None
        """Of each element, the version that changed it last; not there before the first sparse update."""

    def note(self, update: FloatArray, version: int) -> None:
        # a place and a value cost more than a value, so beyond a half nothing could be saved
        if 2 * np.count_nonzero(update) > self._size or version > LAST_VERSION:
            self._whole = version
            return
        if self._last is None:
            self._last = np.zeros(self._size, np.uint32)
        self._last[update != 0] = version

    def since(self, version: int) -> Places | None:
        # a dense update came since, and of those no elements are noted
        if version < self._whole:
            return None
        if self._last is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self._last > version)


def write_changes(values: FloatArray, places: Places | None) -> Bytes | None:
    """Values and their places as bytes, the values first so that they are aligned; None if all values are shorter."""
    if places is None:
        return None
    count, size = len(places), len(values)
    split = FLOAT * count
    out = np.empty(split + bits.places_size(count, size), np.uint8)
    if len(out) >= FLOAT * size:
        return None
    out[:split] = values[places].view(np.uint8)
    bits.write_places(places, size, out[split:])
    return out


def take_changes(data: memoryview, count: int, values: FloatArray) -> None:
    """Put `count` values where they belong. PayloadError: `write_changes` cannot have written this."""
    found, wanted = data.nbytes, FLOAT * count + bits.places_size(count, len(values))
    if count > len(values) or found != wanted:
        raise PayloadError(
            f"{found} bytes of changes came where {count} of {len(values)} elements take {wanted}; they were cut"
        )
    body = np.frombuffer(data, np.uint8)
    places = bits.read_places(body[FLOAT * count :], count, len(values))
    values[places] = np.frombuffer(data, np.float32, count)
