"""What `run.join` does with models and optimizers: one state everywhere, one synchronizer, hooks on both.

A worker that comes later takes the state of a donor in its first join, and goes on where the others are.
"""

from dataclasses import dataclass

import msgspec

from shoal.core.journal import EventJournal
from shoal.core.seeds import mix, seed_all
from shoal.groups.base import WorkerGroup
from shoal.plan.plan import Plan
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.server.connection import ServerConnection
from shoal.train.build import build_exchange
from shoal.train.catchup import handover
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.joined import JoinedModels
from shoal.train.latency import InferenceLatency
from shoal.train.members import JoinedMembers, check_alike
from shoal.train.opening import describe_join
from shoal.train.precision.build import build_precision
from shoal.train.replay import replay
from shoal.train.serving_rows import find_served, load_parameters, open_served
from shoal.train.state import adopt_state
from shoal.train.step_coordinator import StepCoordinator
from shoal.train.synchronizers import OVERLAPPING, build_synchronizer


@dataclass
class ModelJoiner:
    """Of one worker."""

    group: WorkerGroup
    engines: EngineChooser
    together: StepCoordinator
    journal: EventJournal
    latency: InferenceLatency | None
    seed: int
    attempt: int
    replays: bool
    servers: ServerConnection | None = None
    """Those that tables and parts of a model lie on."""

    def join(self, members: JoinedMembers, plan: Plan) -> None:
        """Train `members` by `plan`; a collective call, but for newcomers."""
        group, together, number = self.group, self.together, len(self.together.joined)
        members.served = find_served(plan, members)
        more = (members.optimizers, None, members, together.progress.warn)
        exchange = build_exchange(plan, group, self.engines, self.seed, *more)
        # a newcomer is no member yet, so it takes no part in the gathers below
        late = group.session.waiting
        if not late and not (together.resume is not None and together.resume.handed(number)):
            check_alike(group, members)
            adopt_state(group, members.models, members.optimizers, members.parameters, stateful=members.stateful)
        synchronizer = build_synchronizer(plan, exchange, self.engines, members, self.seed)
        if plan.order.by in OVERLAPPING and exchange.peers and not synchronizer.is_open_ended:
            self.together.progress.warn(f"{plan.order} is as order(ready) here: it overlaps what travels over links")
        joined = JoinedModels(group, members, exchange, synchronizer, self.together.progress, together)
        together.add(joined)
        self.journal.emit(describe_join(number, members))
        # before any state comes: what a precision remembers is part of it
        joined.precision = build_precision(plan, members, self.seed, group.rank, lambda: joined.shares.samples)
        if late:
            self._come_late()
        if together.resume is not None:
            together.resume.join(joined, number)
        # after the state: servers begin with what all workers agreed on
        open_served(joined, plan, group, self.servers)
        if joined.served is not None and not late:
            if together.resume is not None:
                together.resume.load_tables(joined, number)
            load_parameters(joined, group)
        if self.latency is not None:
            self.latency.watch(members.models)
        if self.replays:
            replay(members, self.together.progress.exchanging)
        if group.rank > 0 and not number:
            # dropout differs between workers; worker 0 keeps the stream a single process would have
            seed_all(mix("worker", self.seed, group.rank))

    def _come_late(self) -> None:
        """Become a member of a run that trains already; a donor hands over its state."""
        together, progress = self.together, self.together.progress
        handed, told = handover.take_over(self.group, together.joined[0])
        together.resume = ResumeState.from_donor(handed.state, self.group.slot, self.seed)
        progress.step, progress.epoch = together.resume.where.step, together.resume.where.epoch
        self.journal.emit(msgspec.structs.replace(told, step=progress.step))
        if together.checkpoints is not None:
            together.checkpoints.follow(handed.schedule, progress.step)
        if together.ledger is not None:
            together.ledger.begin(progress.step, self.attempt, self.group.size)
