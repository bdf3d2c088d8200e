"""Prepares a batch as a pure function of (seed, epoch, pass, indices), whichever process does it.

What a dataset draws from the global generators of torch, `random` and numpy is seeded for every sample, and for
`collate_fn` by all indices of the batch. So a batch does not depend on how many servers there are, on which of them
prepares it, or on what was prepared before. A generator that the dataset keeps is not reached: seed it from the index.
"""

import operator
from typing import Any

from torch.utils.data import DataLoader

from shoal.core.seeds import RandomStream, seed_all_cpu
from shoal.data.turn import PassKey


class SampleError(Exception):
    """The dataset or `collate_fn` has raised `__cause__`; `sample` is the index, or empty."""

    def __init__(self, sample: str) -> None:
        super().__init__(sample)
        self.sample = sample


class BatchPreparer:
    """Of one loader with a map-style dataset."""

    def __init__(self, loader: DataLoader[Any], number: int = 0) -> None:
        """`number`: of this process, for the loader's `worker_init_fn`."""
        self._dataset: Any = loader.dataset
        self._collate = loader.collate_fn
        self._by_sample = loader.batch_size is not None or loader.batch_sampler is not None
        self._begin, self._number = loader.worker_init_fn, number
        self._stream = RandomStream(0)

    @property
    def items(self) -> int:
        """Length of the dataset; -1 if it has none."""
        return len(self._dataset) if hasattr(self._dataset, "__len__") else -1

    def prepare(self, key: PassKey, indices: Any) -> Any:
        """Return the batch of `indices`; raise SampleError. The process's own random state is put back."""
        with self._stream.swap_in():
            # once in a process, as torch calls it in its own
            if self._begin is not None:
                self._call("", self._begin, self._number)
                self._begin = None
            return self._in_batches(key, indices) if self._by_sample else self._alone(key, indices)

    def _in_batches(self, key: PassKey, indices: Any) -> Any:
        if callable(getattr(self._dataset, "__getitems__", None)):
            # the dataset fetches all at once, so they share one seed
            seed_all_cpu(key.mix("samples", *map(_name, indices)))
            samples = self._call(f"one of {list(indices)}", self._dataset.__getitems__, list(indices))
        else:
            samples = [self._sample(key, index) for index in indices]
        seed_all_cpu(key.mix("collate", *map(_name, indices)))
        return self._call("", self._collate, samples)

    def _alone(self, key: PassKey, index: Any) -> Any:
        return self._call(str(index), self._collate, self._sample(key, index))

    def _sample(self, key: PassKey, index: Any) -> Any:
        seed_all_cpu(key.mix("sample", _name(index)))
        return self._call(str(index), self._dataset.__getitem__, index)

    @staticmethod
    def _call(sample: str, function: Any, argument: Any) -> Any:
        try:
            return function(argument)
        except Exception as error:
            raise SampleError(sample) from error


def plain_indices(indices: Any) -> Any:
    """Indices as a message can carry them: whole numbers of numpy and torch become those of Python."""
    if isinstance(indices, list | tuple):
        return type(indices)(map(plain_indices, indices)) if type(indices) in (list, tuple) else indices
    if isinstance(indices, bool | str):
        return indices
    try:
        return operator.index(indices)
    except TypeError:
        return indices


def _name(index: Any) -> int | str:
    return index if type(index) is int else repr(index)
