"""A run as the user's script sees it."""

import atexit
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.cluster.board import State
from shoal.cluster.launch.context import Context, find
from shoal.core import record
from shoal.core.errors import UsageError
from shoal.core.events import Ended, Logged, Reported, Sink, Started, Warned
from shoal.core.goal import Goal, goal_from_environment
from shoal.core.journal import Journal
from shoal.core.seeds import mix, seed_all
from shoal.data.loader import Loader
from shoal.plan.load import load
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.sync.statistics import Statistics
from shoal.train.build import Engines, build_exchange, build_pace, default_device
from shoal.train.joined import Joined
from shoal.train.latency import latency_from_environment
from shoal.train.members import check_alike, sort_members
from shoal.train.progress import Progress
from shoal.train.replay import replay
from shoal.train.state import adopt_state
from shoal.train.together import Together

_current: "Run | None" = None


def start() -> "Run":
    """This process's run: alone under `python`, together under `shoal run` and torchrun. Asked twice, the same one."""
    global _current
    if _current is None:
        context = find()
        make: Callable[[Context, Plan], Run] = context.make or Run
        _current = make(context, load(context.plan) if context.plan else Plan())
    return _current


class Run:
    """One worker's side of a run. Use it from the script's main thread."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self.plan = plan
        self.dir = context.dir
        self._group = group = context.group
        self._seed = context.seed
        self.device = default_device(group.rank)
        self._engines = Engines(group, context.dir)
        warnings = check(plan, group.size)
        self._begin(context)
        self._journal = Journal(record.worker_file(context.dir, group.rank))
        self._sink: Sink = self._journal
        self._progress = Progress(self._sink, group, context.speed)
        self._replay = context.replay
        self._together = Together(group, self._progress)
        self._closed = False
        self._goal: Goal | None = goal_from_environment()
        self._reported: dict[str, float] = {}
        self._latency = latency_from_environment(self.is_main)
        seed_all(context.seed)
        self._announce(warnings if group.rank == 0 else [])
        atexit.register(self.close)

    def _begin(self, context: Context) -> None:
        """Worker 0 makes the folder, unless a launcher has done so."""
        if not context.begun and self.is_main:
            info = record.RunInfo(
                run=context.run,
                plan=str(self.plan),
                workers=self.size,
                seed=context.seed,
                script=sys.argv[0],
                command=sys.argv,
                started=time.time(),
                versions=record.versions(),
                machine=record.machine(),
            )
            record.write_info(context.dir, info)
        self._group.gather(b"")

    def _announce(self, warnings: list[str]) -> None:
        self._sink.emit(
            Started(
                at=time.time(),
                rank=self.rank,
                size=self.size,
                host=platform.node(),
                pid=os.getpid(),
                threads=torch.get_num_threads(),
                device=str(self.device),
            )
        )
        for text in warnings:
            self._sink.emit(Warned(at=time.time(), text=text))
        self._journal.flush()

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def is_main(self) -> bool:
        """True on worker 0, which prints and saves."""
        return self._group.rank == 0

    def join(self, *things: Any) -> Any:
        """Train `things` (modules, optimizers, loaders) together with the other workers; returns them in order.

        Modules and optimizers come back as they are, with worker 0's weights and state; a loader comes back dealing
        each worker its part of every batch. Every worker must join the same things in the same order.
        """
        if not things:
            raise UsageError("join() got nothing; give it the model, its optimizer and the loader")
        joined_before = [joined.members for joined in self._together.joined]
        members = sort_members(things, joined_before)
        exchange = build_exchange(self.plan, self._group, self._engines)
        check_alike(self._group, members)
        adopt_state(self._group, members.models, members.optimizers, members.parameters)
        statistics = Statistics(members.models)
        pace = build_pace(exchange, members.names, members.parameters, members.sparse, statistics)
        self._together.add(
            Joined(self._group, members, exchange, pace, self._progress, self._together.announce),
        )
        if self._latency is not None:
            self._latency.watch(members.models)
        if self._replay:
            replay(members, self._progress.exchanging)
        if self.rank > 0 and not joined_before:
            # dropout differs between workers; worker 0 keeps the stream a single process would have
            seed_all(mix("worker", self._seed, self.rank))
        results = tuple(self._welcome(thing) for thing in things)
        return results if len(results) > 1 else results[0]

    def _welcome(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module | Optimizer):
            return thing
        self._progress.has_loader = True
        return Loader(thing, rank=self.rank, size=self.size, seed=self._seed, observer=self._together)

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs of training: 0, 1, … `number` - 1; none follows once worker 0 reported what $SHOAL_UNTIL asks."""
        for epoch in range(number):
            self._progress.epoch = epoch
            yield epoch
            self._progress.pause()
            if self._goal is not None and self._reached(self._goal):
                return

    def _reached(self, goal: Goal) -> bool:
        """Whether worker 0's last report is good enough, for all workers alike; a collective call."""
        return self._group.gather(b"y" if goal.met(self._reported) else b"")[0] == b"y"

    def weight(self, samples: int) -> None:
        """Say how many samples this worker's next backward pass stands for, where no joined loader knows.

        All workers must call it in the same steps; it counts for every pass until the next call.
        """
        if samples < 0:
            raise UsageError(f"weight({samples}): the number of samples must be 0 or more")
        counts = [int(data) for data in self._group.gather(str(samples).encode())]
        self._progress.counted(samples)
        self._together.weigh_openly(counts)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is exchanged; the first backward pass after it exchanges the sum."""
        with self._together.quiet():
            yield

    def log(self, **scalars: float | Tensor) -> None:
        """Record this worker's numbers at this step; `loss` is shown live."""
        values = _numbers(scalars)
        if "loss" in values:
            self._group.board.loss(self.rank, values["loss"])
        self._sink.emit(Logged(at=time.time(), step=self._progress.step, values=values))

    def report(self, **metrics: float | Tensor) -> None:
        """Record results, usually once an epoch; the run's summary holds worker 0's last ones."""
        values = _numbers(metrics)
        progress, self._reported = self._progress, values
        self._sink.emit(Reported(at=time.time(), step=progress.step, epoch=progress.epoch, metrics=values))
        self._journal.flush()

    def close(self) -> None:
        """End this worker's record; called by itself when the script ends."""
        global _current
        if _current is self:
            _current = None
        if self._closed:
            return
        self._closed = True
        error: BaseException | None = getattr(sys, "last_value", None)
        self._progress.pause()
        self._progress.tell_traffic()
        self._progress.tell_layers()
        if self._latency is not None and not error:
            self._sink.emit(self._latency.measure())
        self._sink.emit(Ended(at=time.time(), exit="failed" if error else "done", error=repr(error) if error else ""))
        self._journal.close()
        self._group.board.note(self.rank, State.ended)
        atexit.unregister(self.close)


def _numbers(values: dict[str, float | Tensor]) -> dict[str, float]:
    return {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in values.items()}
