"""Answers that were computed before: a request with the same inputs to the same version is answered from memory.

Clipper (Crankshaw et al., NSDI'17) puts such a cache before its models. The least recently used answers leave first.
Each process has its own. Not for models whose answers change without a new version: those that sample, count or look
something up elsewhere.
"""

import hashlib
from collections import OrderedDict

from shoal.serve.tensors import Array, Tensors

Key = tuple[int, bytes]
"""The serial number of the load of a version, so that other weights are another key; and the digest of the inputs."""
ENTRY = 512
"""Bytes that an entry takes beside its arrays."""


def input_digest(inputs: Tensors) -> bytes:
    """Equal for equal names, types, shapes and values; 0.0 and -0.0 are different, which costs a hit and no mistake."""
    digest = hashlib.blake2b(digest_size=24)
    for name, array in sorted(inputs.items()):
        # Lengths before texts, so that different inputs never run together to the same bytes.
        digest.update(f"{len(name)}:{name}:{array.dtype}:{array.shape}:".encode())
        if array.dtype == object:
            for each in array.ravel():
                digest.update(b"%d:" % len(each) + each)
        else:
            digest.update(array.tobytes())
    return digest.digest()


class ResultCache:
    """At most `limit` bytes of answers; used on the event loop alone."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._answers: OrderedDict[Key, tuple[Tensors, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: Key) -> Tensors | None:
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[0]

    def put(self, key: Key, outputs: Tensors) -> None:
        """Keep a copy: outputs of a batch are views of it, and would keep the answers to others alive."""
        copies = {name: array.copy() for name, array in outputs.items()}
        size = ENTRY + sum(_size(each) for each in copies.values())
        if size > self.limit:
            return
        for array in copies.values():
            # Every later request gets these same arrays.
            array.flags.writeable = False
        self._drop(key)
        self._answers[key] = copies, size
        self.size += size
        while self.size > self.limit:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: Key) -> None:
        if (found := self._answers.pop(key, None)) is not None:
            self.size -= found[1]


def _size(array: Array) -> int:
    return int(array.nbytes) if array.dtype != object else sum(len(each) + 64 for each in array.ravel())
