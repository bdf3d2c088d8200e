"""Randomness of codecs: a pure function of (seed, step, worker, bucket) and the element's place.

A counter-based generator: element i's number is a hash of i and two words made from the context. So an encoding can be
repeated anywhere, in any order, and no generator has a state to save. The hash is the 32-bit mixer of two
multiplications (constants by C. Wellons, "Prospecting for hash functions", 2018); the kernels compute the same bits.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.seeds import mix

MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class EncodeContext:
    """When and where something is encoded: all that its random numbers depend on."""

    seed: int = 0
    step: int = 0
    worker: int = 0
    bucket: int = 0
    reference: Tensor | None = field(default=None, compare=False, repr=False)
    """The values that the encoded changes are of, in the same order; only for codecs that say that they compare."""

    def random_words(self, *more: int | str) -> tuple[int, int]:
        """Return two 32-bit words that seed this encoding."""
        key = mix("codec", self.seed, self.step, self.worker, self.bucket, *more)
        return key & MASK, key >> 31

    def shared_words(self, *more: int | str) -> tuple[int, int]:
        """Return words that are the same for all workers."""
        # Worker -1 exists nowhere, so these words equal no worker's own.
        return EncodeContext(self.seed, self.step, -1, self.bucket).random_words(*more)


def hashes(start: int, count: int, words: tuple[int, int]) -> Tensor:
    """Return 32-bit hashes of the places `start`, `start + 1`, … as int64."""
    x = (torch.arange(start, start + count, dtype=torch.int64) + words[0]) & MASK
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & MASK
    return (x ^ (x >> 15) ^ words[1]) & MASK


def uniforms(start: int, count: int, words: tuple[int, int]) -> Tensor:
    """Return float32 in [0, 1), with 24 bits."""
    # 24 bits are what a float32 holds exactly, so no number is rounded up to 1.
    return (hashes(start, count, words) >> 8).float() * 2.0**-24
