"""Reading an iterable of the user's so that every worker reads the same items in the same order.

The iterable may shuffle: what it draws from the global generators of torch, `random` and numpy, or from a
`torch.Generator` it keeps as `generator`, is seeded alike on all workers; the script's global state is put
back. An iterable with a generator of another kind has to seed it with a constant.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import torch

from shoal.core.seeds import RandomStream, mix
from shoal.data.deal import Read

T = TypeVar("T")

AHEAD = 4096
"""Indices read at once from torch's own samplers: borrowing the generators costs more than an index."""


class CommonReader(Generic[T]):
    """Reads `items` on a random stream that begins at `seed`; `generator` seeds the generators they keep."""

    def __init__(self, items: Iterable[T], seed: int, *, generator: int | None = None) -> None:
        self._items = items
        self._generator = seed if generator is None else generator
        self._stream = RandomStream(seed)
        self._iterator: Iterator[T] | None = None

    def read(self, number: int) -> list[T]:
        """The next items; fewer than `number` at the end."""
        with self._stream.swap_in():
            if self._iterator is None:
                seed_generators(self._items, self._generator)
                # on the stream too, because a sampler may draw its order before its first item
                self._iterator = iter(self._items)
            return list(islice(self._iterator, number))


def seed_generators(owner: object, seed: int, depth: int = 3) -> None:
    """Seed the generator of `owner` and of the samplers within it: loader, batch sampler, sampler at most."""
    found: Any = getattr(owner, "generator", None)
    if isinstance(found, torch.Generator):
        found.manual_seed(mix("generator", seed))
    for name in ("batch_sampler", "sampler"):
        inner: object = getattr(owner, name, None)
        if inner is not None and depth > 1:
            seed_generators(inner, seed, depth - 1)


def read_sampler(sampler: Iterable[T], seed: int) -> Read[T]:
    """Reads what `sampler` yields, the same on every worker."""
    reader = CommonReader(sampler, seed)
    if type(sampler).__module__ != torch.utils.data.sampler.__name__:
        return reader.read  # not ours to read ahead: it may follow the training
    return reading(chain.from_iterable(iter(partial(reader.read, AHEAD), [])))


def reading(items: Iterable[T]) -> Read[T]:
    """Reads `items` as they are."""
    iterator = iter(items)
    return lambda number: list(islice(iterator, number))
