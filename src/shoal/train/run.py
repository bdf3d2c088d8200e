"""A run as the user's script sees it."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core import record
from shoal.core.errors import DivergedError, Quarantined, UsageError
from shoal.core.events import EventSink, ResultsReported, ValuesLogged, WorkerEnded
from shoal.core.goal import TrainingGoal, goal_from_environment
from shoal.core.journal import EventJournal
from shoal.core.seeds import mix, seed_all
from shoal.data.loader import ShardedLoader
from shoal.hosts.status_board import WorkerState
from shoal.launch.context import WorkerContext, find
from shoal.membership.elastic_session import ElasticSession
from shoal.plan.load import load
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm, AloneTerm
from shoal.sync.engine.chooser import EngineChooser
from shoal.train.balance import ShareBalancer
from shoal.train.build import build_exchange
from shoal.train.checkpoint import handover
from shoal.train.checkpoint.coordinator import CheckpointCoordinator, base
from shoal.train.checkpoint.export import export
from shoal.train.checkpoint.interval import CheckpointInterval
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.final_comparison import compare_at_end, fail_at_exit
from shoal.train.joined import JoinedModels
from shoal.train.latency import latency_from_environment
from shoal.train.ledger import LedgerWriter
from shoal.train.members import check_alike, check_loss, is_stateful, read_count, sort_members
from shoal.train.opening import announce, default_device, describe_join, make_folder, without_effect
from shoal.train.plan_switch import PlanSwitcher
from shoal.train.precision.build import build_precision
from shoal.train.progress import StepProgress
from shoal.train.registering import Registration, RunFacts
from shoal.train.replay import replay
from shoal.train.script_state import ScriptState
from shoal.train.state import adopt_state
from shoal.train.step_coordinator import StepCoordinator
from shoal.train.synchronizers import OVERLAPPING, build_synchronizer

_current: "Run | None" = None


def start() -> "Run":
    """This process's run: alone under `python`, together under `shoal run` and torchrun. Asked twice, the same one."""
    global _current
    if _current is None:
        context = find()
        make: Callable[[WorkerContext, Plan], Run] = context.make or Run
        _current = make(context, load(context.plan) if context.plan else Plan())
    return _current


class Run:
    """One worker's side of a run. Use it from the script's main thread."""

    def __init__(self, context: WorkerContext, plan: Plan) -> None:
        self.dir = context.dir
        self._group = group = context.group
        self._seed, self._attempt = context.seed, context.attempt
        self.device = default_device(group.rank)
        by = plan.exchange.by if isinstance(plan.exchange, AllReduceTerm) else "auto"
        self._engines = EngineChooser(group, context.dir, by)
        warnings = without_effect(plan, group)
        make_folder(context, plan)
        self._journal = EventJournal(record.worker_file(context.dir, group.seat))
        self._sink: EventSink = self._journal
        self._progress = StepProgress(self._sink, group, context.speed)
        self._replay = context.replay
        self._together = StepCoordinator(group, self._progress)
        self._switcher = PlanSwitcher(plan, group, self._engines, context.seed, self._progress)
        self._together.switcher = self._switcher
        self._together.where = lambda: self._where([0])
        self._loaders: list[ShardedLoader] = []
        self._phase = -1
        self._next_epoch: int | None = None
        self._keep(context)
        self._closed = False
        self._goal: TrainingGoal | None = goal_from_environment()
        self._reported: dict[str, float] = {}
        self._latency = latency_from_environment(self.is_main)
        self._registration = Registration()
        seed_all(context.seed)
        announce(self._journal, group, self.device, context.attempt, warnings)
        atexit.register(self._close_at_exit)

    def _keep(self, context: WorkerContext) -> None:
        """Set up the ledger and checkpoints; take up what the run goes on from."""
        together, progress, group = self._together, self._progress, self._group
        interval = CheckpointInterval.parse(
            context.checkpoint, "SHOAL_CHECKPOINT" if not context.begun else "--checkpoint"
        )
        self._resume = (
            ResumeState.from_checkpoint(context.resume, group.rank, group.size)
            if context.resume is not None and not group.session.waiting
            else None
        )
        if self._resume is not None:
            where = self._resume.where
            progress.step, progress.epoch, progress.samples = where.step, where.epoch, self._resume.samples
        together.resume = self._resume
        if self.is_main or group.session.elastic:
            together.ledger = LedgerWriter(
                context.dir,
                lambda: group.rank == 0 and not group.session.waiting,
                lambda: (self._attempt, group.session.view.generation),
            )
            together.ledger.begin(progress.step, context.attempt, group.size)
        balancer = ShareBalancer(self.plan.balance.shares, group.session.view.members)
        together.balancer = progress.balancer = balancer
        if group.size == 1 or not isinstance(self.plan.exchange, AloneTerm):  # else every worker has a model of its own
            manifest = base(context.run, str(self.plan), context.seed, group.size, progress.step)
            together.keeper = CheckpointCoordinator(
                group,
                context.dir,
                manifest,
                interval,
                self._journal,
                together.ledger,
                together.joined,
                self._where,
                balancer,
            )

    def _where(self, samples: list[int]) -> TrainingPosition:
        """How far the training has come, for a checkpoint at this moment."""
        progress = self._progress
        return TrainingPosition(
            epoch=progress.epoch if self._next_epoch is None else self._next_epoch,
            step=progress.step + progress.stepped,
            samples=samples,
            phase=max(0, self._phase),
            loaders=[loader.standing() for loader in self._loaders],
        )

    @property
    def plan(self) -> Plan:
        """What the workers train by now."""
        return self._switcher.plan

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def worker_id(self) -> int:
        """This worker's number for as long as it lives. Ranks close up when a worker is lost; ids do not."""
        return self._group.seat

    @property
    def step(self) -> int:
        """The number of the step under way, counted from 0 over all epochs.

        With a joined loader it ends when the next batch is asked for, else when the optimizer's step is done. A run
        that is resumed, and a worker that joins later, go on with the number of the others.
        """
        return self._progress.step

    @property
    def samples(self) -> int:
        """Samples that this worker has trained on in the steps before this one."""
        return self._progress.samples

    @property
    def is_main(self) -> bool:
        """True on worker 0, which prints and saves."""
        return self._group.rank == 0 and not self._group.remote  # a guest may outlast the others by a moment

    def join(self, *things: Any, loss: str = "mean") -> Any:
        """Train `things` (modules, optimizers, loaders) together with the other workers; returns them in order.

        Modules and optimizers come back as they are, with worker 0's weights and state; a loader comes back dealing
        each worker its part of every batch. Whatever else has `state_dict` and `load_state_dict` (a GradScaler, an
        average) is joined for its state, which newcomers and checkpoints get. Every worker must join the same things in
        the same order.

        `loss` says what the script's loss is over the samples of its batch: with "mean" gradients are averaged over the
        samples of all workers, with "sum" (`reduction="sum"`) they are added up.
        """
        if not things:
            raise UsageError("join() got nothing; give it the model, its optimizer and the loader")
        joined_before = [joined.members for joined in self._together.joined]
        members = sort_members(things, joined_before)
        members.loss = check_loss(loss)
        if not joined_before:
            members.stateful += self._together.states
        exchange = build_exchange(self.plan, self._group, self._engines, self._seed, members.optimizers)
        late, number = self._group.session.waiting, len(joined_before)
        if not late and not (self._resume is not None and self._resume.handed(number)):
            check_alike(self._group, members)
            adopt_state(self._group, members.models, members.optimizers, members.parameters, stateful=members.stateful)
        synchronizer = build_synchronizer(self.plan, exchange, self._engines, members)
        if self.plan.order.by in OVERLAPPING and exchange.peers and not synchronizer.is_open_ended:
            self._progress.warn(f"{self.plan.order} is as order(ready) here: it overlaps what travels over links")
        joined = JoinedModels(self._group, members, exchange, synchronizer, self._progress, self._together)
        self._together.add(joined)
        self._sink.emit(describe_join(number, members))
        joined.precision = build_precision(self.plan, members, self._seed, self.rank, lambda: joined.shares.samples)
        if late:
            self._come_late()
        if self._resume is not None:
            self._resume.join(joined, number)
        if self._latency is not None:
            self._latency.watch(members.models)
        if self._replay:
            replay(members, self._progress.exchanging)
        if self.rank > 0 and not joined_before:
            # dropout differs between workers; worker 0 keeps the stream a single process would have
            seed_all(mix("worker", self._seed, self.rank))
        results = tuple(self._welcome(thing) for thing in things)
        if self._together.states:
            self._begin_loop()
        return results if len(results) > 1 else results[0]

    def state(self, **values: Any) -> ScriptState:
        """An object with these attributes, for what the script counts itself: `state = run.state(iter_num=0)`.

        Kept in checkpoints; a worker that comes later, and a run that goes on, begin with what it was then. Where no
        loader is joined, assign to it once an iteration, after the optimizer's step: newcomers enter between two.
        """
        found = ScriptState(values)
        together = self._together
        together.states.append(found)
        if together.joined:
            stateful = together.joined[0].members.stateful
            stateful.append(found)
            if self._resume is not None:
                self._resume.give(found, len(stateful) - 1)
            self._begin_loop()
        return found

    def _begin_loop(self) -> None:
        if self._resume is not None and not self._progress.has_loader:
            self._resume.begin_loop(self._together.joined)
            self._together.begin_loop()

    def _come_late(self) -> None:
        """Become a member of a run that trains already; a donor hands over its state."""
        handed, told = handover.take_over(self._group, self._together.joined[0])
        together, progress = self._together, self._progress
        self._resume = together.resume = ResumeState.from_donor(handed.state, self._group.seat, self._seed)
        progress.step, progress.epoch = self._resume.where.step, self._resume.where.epoch
        self._sink.emit(msgspec.structs.replace(told, step=progress.step))
        if together.keeper is not None:
            together.keeper.follow(handed.agenda, progress.step)
        if together.ledger is not None:
            together.ledger.begin(progress.step, self._attempt, self.size)

    def _welcome(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module | Optimizer) or is_stateful(thing):
            return thing
        self._progress.has_loader = True
        number = len(self._loaders)
        loader = ShardedLoader(
            thing,
            rank=self.rank,
            size=self.size,
            seed=self._seed,
            observer=self._together,
            number=number,
            standing=self._resume.standing(number) if self._resume is not None else None,
            place=self._together.place,
        )
        self._loaders.append(loader)
        return loader

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs of training: 0, 1, … `number` - 1; none follows once worker 0 reported what $SHOAL_UNTIL asks.

        A run that is continued begins with the epoch it was in.
        """
        self._phase += 1
        resume = self._resume if self._resume is not None and self._phase <= self._resume.where.phase else None
        if resume is not None and self._phase < resume.where.phase:
            return
        for epoch in range(resume.where.epoch if resume is not None else 0, number):
            self._progress.epoch = epoch
            for loader in self._loaders:
                loader.epoch_began(epoch)
            if resume is not None and not resume.midway:
                resume.go_on(self._together.joined)
            yield epoch
            self._progress.pause()
            self._epoch_ended(epoch)
            if self._goal is not None and self._reached(self._goal):
                return

    def _epoch_ended(self, epoch: int) -> None:
        """Whatever the script does between epochs is done: a good moment to compare, and to keep."""
        keeper = self._together.keeper
        if keeper is not None and self._together.joined:
            self._together.settle()
            keeper.catch_up(self._progress.step, self._progress.samples)
            self._next_epoch = epoch + 1
            keeper.meet(self._progress.step, self._progress.samples, epoch_ended=True)
            self._next_epoch = None

    def switch(self, plan: str) -> None:
        """Ask for another plan; all workers train by it from a step within the next second or two on.

        It may be called on all workers, as a script does, or on one; on workers of machines that joined it does
        nothing, because their word does not count. Optimizers and residuals go on; see docs/plans.md.
        """
        self._switcher.request(load(plan))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the joined model's weights as a plain safetensors file, for others to use; worker 0 writes it.

        Names are those of `model.state_dict()`; of several joined models each has its number in front.
        """
        models = [model for joined in self._together.joined for model in joined.members.models]
        if not models:
            raise UsageError("save() has no model; give one to join() first")
        if self.is_main:
            export(models, Path(path))

    def register(self, name: str, *, example: Any = None, note: str = "", now: bool = False) -> None:
        """Register this run as a version of the model `name` when it ends well; `now`: also as it is at this moment.

        With `example`, a batch of inputs, the version holds samples and a program that runs without this script.
        """
        self._registration.choose(name, example, note)
        if now and self.is_main and self._registration.is_on:
            if self._together.ledger is not None:
                self._together.ledger.flush()
            self._registration.store(self._facts())

    def _facts(self) -> RunFacts:
        """What this run would be registered as."""
        models = [model for joined in self._together.joined for model in joined.members.models]
        loader = self._loaders[0] if self._loaders else None
        progress = self._progress
        return RunFacts(models, self.dir, progress.step + progress.stepped, progress.epoch, self._reported, loader)

    def _reached(self, goal: TrainingGoal) -> bool:
        """Whether worker 0's last report is good enough, for all workers alike; a collective call."""
        return self._group.gather(b"y" if goal.met(self._reported) else b"")[0] == b"y"

    def weight(self, samples: int) -> None:
        """Say how many samples this worker's next backward pass stands for, where no joined loader knows.

        All workers must call it in the same steps; it counts for every pass until the next call.
        """
        if samples < 0:
            raise UsageError(f"weight({samples}): the number of samples must be 0 or more")
        self._together.pass_began()
        counts = [read_count(data) for data in self._group.gather(str(samples).encode(), check=read_count)]
        self._progress.counted(samples)
        self._together.weigh_openly(counts)

    def exchange(self) -> None:
        """Exchange what every `p.grad` holds now, for scripts that write gradients themselves; on all workers alike.

        Backward passes exchange theirs by themselves. A collective call, before `optimizer.step()`.
        """
        self._together.exchange()

    def barrier(self) -> None:
        """Wait until every worker has come here; a collective call."""
        self._group.gather(b"")

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is exchanged; the first backward pass after it exchanges the sum."""
        with self._together.quiet():
            yield

    def log(self, **scalars: float | Tensor) -> None:
        """Record this worker's numbers at this step; `loss` is shown live."""
        values = _numbers(scalars)
        if "loss" in values:
            self._group.board.loss(self._group.seat, values["loss"])
        self._sink.emit(ValuesLogged(at=time.time(), step=self._progress.step, values=values))

    def report(self, **metrics: float | Tensor) -> None:
        """Record results, usually once an epoch; the run's summary holds worker 0's last ones."""
        values = _numbers(metrics)
        progress, self._reported = self._progress, values
        self._sink.emit(ResultsReported(at=time.time(), step=progress.step, epoch=progress.epoch, metrics=values))
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
        if error is None:
            self._together.settle()
        self._together.rounds.closed = True
        self._progress.pause()
        self._progress.tell_traffic()
        self._progress.tell_layers()
        self._progress.tell_buckets()
        if self._together.keeper is not None and error is None:  # else the shards of others may never come
            self._together.keeper.close()
        if self._together.ledger is not None:
            self._together.ledger.close()
        one_model = self.size == 1 or not isinstance(self.plan.exchange, AloneTerm)
        if error is None and self.is_main and one_model and (problem := self._registration.finish(self._facts())):
            self._progress.warn(problem)
        if self._latency is not None and not error:
            self._sink.emit(self._latency.measure())
        ended = self._end(error)
        self._sink.emit(ended)
        self._journal.close()
        self._group.board.note(self._group.seat, WorkerState.ended)
        if self._group.remote and error is not None and isinstance(self._group.session, ElasticSession):
            self._group.session.leave_early()  # a guest's failure is its own: the others go on
        self._group.session.close(not isinstance(error, Quarantined), (ended.step, ended.fingerprint))
        atexit.unregister(self._close_at_exit)
        if error is None:
            compare_at_end(self._group, ended)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except DivergedError as error:
            fail_at_exit(error, self._group)

    def _end(self, error: BaseException | None) -> WorkerEnded:
        """The record's last event; the launcher compares what workers that are done hold then."""
        if error is not None:
            return WorkerEnded(at=time.time(), exit="failed", error=repr(error), step=self._progress.step)
        found = self._together.final_fingerprint()
        return WorkerEnded(at=time.time(), exit="done", step=self._progress.step, fingerprint=found)


def _numbers(values: dict[str, float | Tensor]) -> dict[str, float]:
    return {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in values.items()}
