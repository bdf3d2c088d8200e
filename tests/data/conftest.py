"""Several workers in one process: one `ShardedLoader` per rank, and an observer that remembers."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.data.loader import ShardedLoader
from shoal.data.observer import NoObserver


class Watch(NoObserver):
    """Remembers the calls by name, and the counts of all steps."""

    def __init__(self, epoch: int = 0) -> None:
        super().__init__(epoch)
        self.calls: list[str] = []
        self.counts: list[tuple[int, ...]] = []

    def load_began(self) -> None:
        self.calls.append("began")

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.calls.append("ended")
        self.counts.append(counts)

    def short(self, counts: tuple[int, ...]) -> None:
        self.calls.append("short")
        self.counts.append(counts)

    def exhausted(self, run: object = None) -> None:
        self.calls.append("exhausted")


class Crew:
    """`size` workers over loaders made alike; `run` gives what each of them yielded."""

    def __init__(self, make: Callable[[], Any], size: int, seed: int = 0) -> None:
        self.watches = [Watch() for _ in range(size)]
        self.loaders = [
            ShardedLoader(make(), rank=rank, size=size, seed=seed, observer=watch)
            for rank, watch in enumerate(self.watches)
        ]

    def run(self, epoch: int = 0) -> list[list[Any]]:
        for watch in self.watches:
            watch.epoch = epoch
        return [[_plain(batch) for batch in loader] for loader in self.loaders]

    def steps(self, epoch: int = 0) -> list[list[Any]]:
        """What all workers consumed together, step by step."""
        yielded = [iter(batches) for batches in self.run(epoch)]
        counts = self.watches[0].counts
        assert all(watch.counts == counts for watch in self.watches)
        result: list[list[Any]] = []
        for sizes in counts:
            own = [next(batches) if size else [] for batches, size in zip(yielded, sizes, strict=True)]
            assert tuple(map(len, own)) == sizes
            result.append([sample for batch in own for sample in batch])
        assert all(next(batches, None) is None for batches in yielded)
        return result


def _plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


@pytest.fixture(scope="session")
def crew() -> type[Crew]:
    return Crew


@pytest.fixture
def watch() -> Watch:
    return Watch()
