"""A run as the user's script sees it."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core import record
from shoal.core.errors import DivergedError, UsageError
from shoal.core.events import LoaderJoined
from shoal.core.journal import EventJournal
from shoal.core.seeds import seed_all
from shoal.launch.context import WorkerContext, find
from shoal.plan.load import load
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm, AloneTerm
from shoal.sync.engine.chooser import EngineChooser
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.weights import write_weights
from shoal.train.closing import RunClosing
from shoal.train.data_tier import connect_data_servers
from shoal.train.epochs import TrainingEpochs
from shoal.train.final_comparison import compare_at_end, fail_at_exit
from shoal.train.joining import ModelJoiner
from shoal.train.keeping import begin_keeping
from shoal.train.latency import latency_from_environment
from shoal.train.link_priority import begin_priority
from shoal.train.members import check_loss, is_stateful, mean_of, read_count, read_value, sort_members
from shoal.train.opening import announce, default_device, make_folder, without_effect
from shoal.train.plan_fitness import check_fitness, why_unleased
from shoal.train.plan_switch import PlanSwitcher
from shoal.train.progress import StepProgress
from shoal.train.registering import Registration, RunFacts
from shoal.train.reports import RunReports
from shoal.train.script_state import ScriptState
from shoal.train.servers import connect_servers
from shoal.train.stages import WorkerStages
from shoal.train.step_coordinator import StepCoordinator

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
        self._seed = context.seed
        self.device = default_device(group.rank)
        by = plan.exchange.algorithm if isinstance(plan.exchange, AllReduceTerm) else "auto"
        self._engines = EngineChooser(group, context.dir, by)
        servers = connect_servers(plan, group, context.servers)
        self._engines.servers = None if plan.parts else servers  # parts in lock-step are summed by the workers
        warnings = without_effect(plan, group)
        # before the journal: worker 0 makes the folder that all write into
        make_folder(context, plan)
        self._journal = EventJournal(record.worker_file(context.dir, group.slot))
        self._progress = StepProgress(self._journal, group, context.speed)
        self._together = StepCoordinator(group, self._progress)
        self._switcher = PlanSwitcher(plan, group, self._engines, context.seed, self._progress, context.servers)
        self._together.switcher = self._switcher
        self._stages = self._together.stages = WorkerStages(group, self._progress, self.dir)
        self._reports = RunReports(self._journal, group, self._progress)
        self._epochs = TrainingEpochs(
            self._together, self._reports, connect_data_servers(context.data, self._progress, group)
        )
        self._together.where = lambda: self._epochs.position([0])
        begin_priority(context.run, group, self._progress, self._epochs, self._together.joined)
        begin_keeping(context, plan, self._together, self._journal, self._epochs.position)
        self._closed = False
        self._latency = latency_from_environment(self.is_main)
        self._registration = Registration()
        again = (context.seed, context.attempt, context.replay)
        self._joiner = ModelJoiner(group, self._engines, self._together, self._journal, self._latency, *again)
        self._joiner.servers = servers.connection if servers is not None and plan.parts else None
        # before the script draws anything: the same seed and number of workers give the same run
        seed_all(context.seed)
        announce(self._journal, group, self.device, context.attempt, warnings)
        atexit.register(self._close_at_exit)

    @property
    def _resume(self) -> ResumeState | None:
        """What this run goes on from: a checkpoint, or a donor's state."""
        return self._together.resume

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
        return self._group.slot

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
        return self._group.rank == 0 and not self._group.remote  # a remote worker may outlast the others by a moment

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
        # `run.state` may have come before the first join, which then carries its values
        if not joined_before:
            members.stateful += self._together.states
        self._joiner.join(members, self.plan)
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

    def _welcome(self, thing: Any) -> Any:
        if isinstance(thing, nn.Module | Optimizer) or is_stateful(thing):
            return thing
        self._progress.has_loader = True
        loader = self._epochs.add_loader(thing, self._seed)
        self._journal.emit(LoaderJoined(at=time.time(), unleased=why_unleased(loader)))
        return loader

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs of training: 0, 1, … `number` - 1; none follows once worker 0 reported what $SHOAL_UNTIL asks.

        A run that is continued begins with the epoch it was in.
        """
        return self._epochs.run(number)

    def switch(self, plan: str) -> None:
        """Ask for another plan; all workers train by it from a step within the next second or two on.

        It may be called on all workers, as a script does, or on one; on workers of machines that joined it does
        nothing, because their word does not count. Optimizers and residuals go on; see docs/plans.md.
        """
        wanted = load(plan)
        # refused before the others are asked, who would build this plan too
        self._together.check_parts(wanted)
        if self.size > 1:  # one worker exchanges nothing, whatever the plan
            check_fitness(wanted, [joined.members for joined in self._together.joined], self._epochs.loaders)
        self._switcher.request(wanted)

    def stage(self, name: str, *, workers: int) -> None:
        """Begin a stage of the job, with so many workers; call it on all workers, between two steps.

        Nobody waits: workers that are too many leave after their step, others are started and enter between two steps
        of the stage. Called again with the same words it does nothing. `shoal show` tells the core-seconds of each
        stage. With one process, and where no launcher of this machine has started the run, the number stays as it is.
        """
        self._stages.begin(name, workers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the joined model's weights as a plain safetensors file, for others to use; worker 0 writes it.

        Names are those of `model.state_dict()`; of several joined models each has its number in front. Under `local(…)`
        the weights are what all workers agreed on last.
        """
        models = [model for joined in self._together.joined for model in joined.members.models]
        if not models:
            raise UsageError("save() has no model; give one to join() first")
        if self.is_main:
            with self._together.agreed_parameters():
                for joined in self._together.joined:
                    # what lies on servers is here only as of its last use
                    joined.refresh_served()
                write_weights(models, Path(path))

    def register(self, name: str, *, example: Any = None, note: str = "", now: bool = False) -> None:
        """Register this run as a version of the model `name` when it ends well; `now`: also as it is at this moment.

        With `example`, a batch of inputs, the version holds samples and a program that runs without this script.
        """
        self._registration.choose(name, example, note)
        if now and self.is_main and self._registration.is_on:
            if self._together.ledger is not None:
                # the version's lineage is read from the ledger's file
                self._together.ledger.flush()
            self._registration.store(self._facts())

    def _facts(self) -> RunFacts:
        """What this run would be registered as."""
        models = [model for joined in self._together.joined for model in joined.members.models]
        loader = self._epochs.loaders[0] if self._epochs.loaders else None
        progress = self._progress
        return RunFacts(models, self.dir, progress.step + progress.stepped, progress.epoch, self._reports.last, loader)

    def weight(self, samples: int) -> None:
        """Say how many samples this worker's next backward pass stands for, where no joined loader knows.

        All workers must call it in the same steps; it counts for every pass until the next call.
        """
        if samples < 0:
            raise UsageError(f"weight({samples}): the number of samples must be 0 or more")
        # first: newcomers may enter here, and the counts must be those of the members that train
        self._together.pass_began()
        self._together.rounds.land()
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
        # an overlapped round is an open operation, and a gather would be another
        self._together.rounds.land()
        self._group.gather(b"")

    def mean(self, value: float | Tensor) -> float:
        """Return the mean of the workers' values, the same on all of them; a collective call.

        Workers that decide by it, when to stop or to lower a learning rate, decide alike.
        """
        self._together.rounds.land()
        return mean_of(self._group.gather(repr(float(value)).encode(), check=read_value))

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is exchanged; the first backward pass after it exchanges the sum."""
        with self._together.quiet():
            yield

    def log(self, **scalars: float | Tensor) -> None:
        """Record this worker's numbers at this step; `loss` is shown live."""
        self._reports.log(scalars)

    def report(self, **metrics: float | Tensor) -> None:
        """Record results, usually once an epoch; the run's summary holds worker 0's last ones."""
        self._reports.report(metrics)

    def close(self) -> None:
        """End this worker's record; called by itself when the script ends."""
        global _current
        if _current is self:
            _current = None
        if self._closed:
            return
        self._closed = True
        # set by the interpreter, or by `launch/worker.py`, for an exception that ended the script
        error: BaseException | None = getattr(sys, "last_value", None)
        closing = RunClosing(self._group, self._together, self._progress, self._journal, self._latency)
        ended = closing.close(error, self._store_model)
        atexit.unregister(self._close_at_exit)
        if error is None:
            compare_at_end(self._group, ended)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except DivergedError as error:
            fail_at_exit(error, self._group)

    def _store_model(self) -> str:
        """Register the run that has ended well; returns what went wrong, or nothing."""
        # under `alone` every worker trains a model of its own, and worker 0's is not the run's
        one_model = self.size == 1 or not isinstance(self.plan.exchange, AloneTerm)
        return self._registration.finish(self._facts()) if self.is_main and one_model else ""
