"""The script in the role of a data server: it runs until it would train, and prepares batches for the workers instead.

    data = …; model = …; optimizer = …          as in a worker, with the same seed
    run.join(model, optimizer, loader)          the loader is noted, nothing is exchanged
    for epoch in run.epochs(3): …               here, or at the first batch or optimizer step, it serves for ever

A loader that is joined later is not known here, and workers prepare its batches themselves.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.core.seeds import seed_all
from shoal.data.loader import ShardedLoader
from shoal.data.observer import NoObserver
from shoal.data.tier.batch_server import serve_batches
from shoal.data.tier.preparing import BatchPreparer
from shoal.launch.context import WorkerContext
from shoal.launch.data_seats import DataServerSeat
from shoal.plan.plan import Plan
from shoal.train.members import is_stateful
from shoal.train.script_state import ScriptState


class DataRun:
    """What `shoal.start()` returns in a data server: everything `Run` has, and no other workers."""

    is_main = False
    step = samples = 0

    def __init__(self, context: WorkerContext, plan: Plan, seat: DataServerSeat, workers: int) -> None:
        self.dir, self.plan, self.size = context.dir, plan, workers
        # above the workers' own, so that no worker has the same
        self.rank = self.worker_id = workers + seat.number
        # batches are prepared in the host's memory
        self.device = torch.device("cpu")
        self._seat, self._seed = seat, context.seed
        self._loaders: list[BatchPreparer] = []
        seed_all(context.seed)

    def join(self, *things: Any, loss: str = "mean") -> Any:
        """Note the loaders."""
        results = tuple(self._welcome(thing) for thing in things)
        return results if len(results) > 1 else results[0]

    def _welcome(self, thing: Any) -> Any:
        if isinstance(thing, Optimizer):
            # a loop that uses neither run.epochs nor a joined loader begins to train here
            thing.register_step_pre_hook(lambda *_: self._serve())
        if isinstance(thing, nn.Module | Optimizer) or is_stateful(thing):
            return thing
        self._loaders.append(BatchPreparer(thing, self._seat.number))
        return _ServedLoader(thing, self)

    def _serve(self) -> NoReturn:
        if not self._loaders:
            raise UsageError("a data server has nothing to serve: join the DataLoader, or leave --data-servers out")
        # a data server ends by being killed, and what is still in the buffer would be lost
        sys.stdout.flush()
        serve_batches(self._seat.address, self._seat.lock, self._loaders)
        raise AssertionError("it serves until it is killed")

    def epochs(self, number: int) -> Iterator[int]:
        if number > 0:
            self._serve()
        yield from ()

    def exchange(self) -> None:
        self._serve()

    def weight(self, samples: int) -> None:
        self._serve()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        yield

    def mean(self, value: float | Tensor) -> float:
        return float(value)

    def state(self, **values: Any) -> ScriptState:
        return ScriptState(values)

    def barrier(self) -> None:
        """Workers wait for each other, not for data servers."""

    def switch(self, plan: str) -> None:
        pass

    def stage(self, name: str, *, workers: int) -> None:
        pass

    def save(self, path: Any) -> None:
        pass

    def register(self, name: str, *, example: Any = None, note: str = "", now: bool = False) -> None:
        pass

    def log(self, **scalars: float | Tensor) -> None:
        pass

    def report(self, **metrics: float | Tensor) -> None:
        pass

    def close(self) -> None:
        pass


class _ServedLoader(ShardedLoader):
    """The joined loader: its length is a worker's, and iterating it begins to serve."""

    def __init__(self, loader: Any, run: DataRun) -> None:
        super().__init__(loader, rank=0, size=run.size, seed=0, observer=NoObserver())
        self._run = run

    def __iter__(self) -> Iterator[Any]:
        self._run._serve()
