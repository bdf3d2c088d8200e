"""The loader the script iterates: the user's own, dealt to the workers.

Samples follow from (seed, epoch) alone: every one exactly once an epoch, in the same global order for any
number of workers. `batch_size` counts per worker: a step of p workers with batch b takes what one worker with
batch p*b would take. The remainder of an epoch is dealt evenly; who gets none of it takes part in that step
with weight zero, unnoticed by the script.
"""

from collections.abc import Iterator
from typing import Any

from shoal.core.errors import UsageError
from shoal.data.observer import Observer
from shoal.data.source.base import Place, Step
from shoal.data.source.choose import choose
from shoal.data.turn import Turn


class Loader:
    """Iterates this worker's batches; all else (`dataset`, `batch_size`, ...) is left to the user's."""

    def __init__(self, loader: Any, *, rank: int, size: int, seed: int, observer: Observer) -> None:
        if isinstance(loader, Loader):
            raise UsageError("this loader has been joined already; join the DataLoader it was made from")
        self._loader = loader
        self._rank = rank
        self._seed = seed
        self._observer = observer
        self._source = choose(loader, Place(rank, size))
        self._turn: Turn | None = None

    def __iter__(self) -> Iterator[Any]:
        observer = self._observer
        steps: Iterator[Step] | None = None
        try:
            observer.load_began()
            steps = self._source.steps(self._begin())
            for sizes, batch in steps:
                if sizes[self._rank]:
                    observer.load_ended(sizes)
                    yield batch
                else:
                    observer.short(sizes)
                observer.load_began()
        finally:
            # The inner loader goes first: its processes may still be loading when the script leaves early.
            del steps
            observer.exhausted()

    def __len__(self) -> int:
        """Steps of a pass, the same on every worker; one with a short last step yields one batch less."""
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for these before there is a loader to ask
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def _begin(self) -> Turn:
        epoch, last = self._observer.epoch, self._turn
        number = last.number + 1 if last is not None and last.epoch == epoch else 0
        self._turn = Turn(self._seed, epoch, number)
        return self._turn
