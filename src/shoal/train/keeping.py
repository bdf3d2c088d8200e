"""What a run keeps of itself: the ledger of samples, checkpoints, and the state that it goes on from."""

from collections.abc import Callable

from shoal.core.journal import EventJournal
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.plan.terms import AloneTerm
from shoal.train.balance import ShareBalancer
from shoal.train.checkpoint.coordinator import CheckpointCoordinator, base
from shoal.train.checkpoint.interval import CheckpointInterval
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.ledger import LedgerWriter
from shoal.train.step_coordinator import StepCoordinator


def begin_keeping(
    context: WorkerContext,
    plan: Plan,
    together: StepCoordinator,
    journal: EventJournal,
    where: Callable[[list[int]], TrainingPosition],
) -> None:
    """Set up the ledger and checkpoints; take up what the run goes on from."""
    progress, group = together.progress, together.group
    interval = CheckpointInterval.parse(context.checkpoint, "SHOAL_CHECKPOINT" if not context.begun else "--checkpoint")
    # a newcomer gets a newer state from its donor
    if context.resume is not None and not group.session.waiting:
        together.resume = ResumeState.from_checkpoint(context.resume, group.rank, group.size)
        found = together.resume.where
        progress.step, progress.epoch, progress.samples = found.step, found.epoch, together.resume.samples
    # where workers may be lost, any of them may have to go on writing it
    if (group.rank == 0 and not group.remote) or group.session.elastic:
        together.ledger = LedgerWriter(
            context.dir,
            lambda: group.rank == 0 and not group.session.waiting,
            lambda: (context.attempt, group.session.view.generation),
        )
        together.ledger.begin(progress.step, context.attempt, group.size)
    balancer = ShareBalancer(plan.balance.shares, group.session.view.members)
    together.balancer = progress.balancer = balancer
    if group.size == 1 or not isinstance(plan.exchange, AloneTerm):  # else every worker has a model of its own
        manifest = base(context.run, str(plan), context.seed, group.size, progress.step)
        together.checkpoints = CheckpointCoordinator(
            group, context.dir, manifest, interval, journal, together.ledger, together.joined, where, balancer
        )
