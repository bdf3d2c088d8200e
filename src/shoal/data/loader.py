"""The loader the script iterates: the user's own, dealt to the workers.

Samples follow from (seed, epoch) alone: every one exactly once an epoch, in the same global order for any
number of workers. `batch_size` counts per worker: a step of p workers with batch b takes what one worker with
batch p*b would take. The remainder of an epoch is dealt evenly; who gets none of it takes part in that step
with weight zero, unnoticed by the script. A run that is continued deals what remains of the pass it was in; so does
one whose members change, and what a lost worker had been dealt is dealt again.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shoal.core.errors import UsageError
from shoal.data.loader_pass import LoaderPass
from shoal.data.observer import LoaderObserver
from shoal.data.source.base import BatchSource, LoaderStep, WorkerPlace
from shoal.data.source.choose import choose
from shoal.data.source.mapped import PreparesBatches
from shoal.data.standing import LoaderPosition
from shoal.data.turn import PassKey


class ShardedLoader:
    """Iterates this worker's batches; all else (`dataset`, `batch_size`, ...) is left to the user's."""

    def __init__(
        self, loader: Any, *, rank: int, size: int, seed: int, observer: LoaderObserver, number: int = 0,
        standing: LoaderPosition | None = None, place: Callable[[], WorkerPlace] | None = None,
        prepare: PreparesBatches | None = None,
    ) -> None:  # fmt: skip
        """`prepare`: what makes batches instead of the loader itself."""
        if isinstance(loader, ShardedLoader):
            raise UsageError("this loader has been joined already; join the DataLoader it was made from")
        self._loader = loader
        self._place = WorkerPlace(rank, size)
        self._where = place or (lambda: WorkerPlace(rank, size))
        self._seed = seed
        self._observer = observer
        self._number = number
        self._prepare = prepare
        self._source: BatchSource = choose(loader, self._place, prepare)
        self._standing = standing or LoaderPosition()
        self._first = self._standing.first
        self._turn = PassKey(seed, self._standing.epoch, self._first - 1) if self._first else None
        self._open: list[LoaderPass] = []
        self._done: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        observer = self._observer
        steps: Iterator[LoaderStep] | None = None
        run: LoaderPass | None = None
        try:
            run = self._begin()
            observer.load_began()
            if run is None:
                return
            more = True
            while more:
                self._move(run)
                # a copy: `run.left` changes with every step, while the source reads ahead
                steps, more = self._source.steps(run.turn, dict(run.left), run.leases), False
                for step in steps:
                    observer.next_step(run, step)
                    if run.ended:
                        break
                    # members or the rest of the pass have changed: this step is void, and what is left is dealt anew
                    if run.changed or self._where() != self._place:
                        more = True
                        break
                    if run.is_void(step):
                        continue
                    run.give(step)
                    observer.dealt(run, step)
                    if step.counts[self._place.rank]:
                        observer.load_ended(step.counts)
                        yield step.batch
                    else:
                        observer.short(step.counts)
                    observer.load_began()
                    # asked here too, or the next batch would be loaded only to be thrown away
                    if run.changed or self._where() != self._place:
                        more = True
                        break
                else:
                    observer.next_step(run, None)
                    more = run.goes_on
            # a resumed run repeats passes that trained nothing
            self._done += [run.turn.number] * run.trained
            observer.finished(run)
        finally:
            # The inner loader goes first: its processes may still be loading when the script leaves early.
            del steps
            if run in self._open:
                self._open.remove(run)
            observer.exhausted(run)

    def _move(self, run: LoaderPass) -> None:
        """Deal for the members there are now."""
        run.changed = False
        if (place := self._where()) != self._place:
            self._place, self._source = place, choose(self._loader, place, self._prepare)

    def __len__(self) -> int:
        """Steps of a pass, the same on every worker; one with a short last step yields one batch less."""
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for these before there is a loader to ask
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def _begin(self) -> LoaderPass | None:
        """The next pass, or None if it was done before the run was continued."""
        epoch, last = self._observer.epoch, self._turn
        same = last is not None and last.epoch == epoch
        number = last.number + 1 if last is not None and same else 0
        if not same:
            self._done = []
        self._turn = PassKey(self._seed, epoch, number)
        left = self._standing.left(epoch, number)
        if left is None:
            self._done.append(number)
            return None
        run = LoaderPass(self, self._turn, dict(left), trained=bool(left))
        self._open.append(run)
        if left:
            self._observer.continued()
        self._observer.opened(run)
        return run

    def epoch_began(self, epoch: int) -> None:
        """The script begins an epoch, maybe for the second time."""
        self._first = self._turn.number + 1 if self._turn is not None and self._turn.epoch == epoch else 0

    def standing(self) -> LoaderPosition:
        """Return what a checkpoint keeps: the passes used by steps, in the epoch of the last one."""
        epoch = self._turn.epoch if self._turn is not None else 0
        trained = [run for run in self._open if run.trained and run.turn.epoch == epoch]
        return LoaderPosition.of(epoch, self._done, {run.turn.number: run.left for run in trained}, self._first)

    def own_count(self, step: LoaderStep) -> int:
        """Samples that this worker has in a step."""
        return step.counts[self._place.rank]

    def own_places(self, step: LoaderStep) -> list[int]:
        """Positions of the samples that this worker has in a step."""
        return step.positions_of(self._place.rank)

    def names(self, turn: PassKey, places: list[int]) -> list[Any]:
        """Return the dataset's own indices of the samples at `places`, if they are known."""
        return self._source.names(turn, places)

    @property
    def lease_batch(self) -> int | None:
        """Samples of a lease; None where samples of this loader cannot be leased."""
        return self._source.lease_batch

    @property
    def facts(self) -> tuple[int, int | None, int]:
        """Which loader this is, how many positions a pass has, and how many its end may drop."""
        return self._number, self._source.items, self._source.drops
