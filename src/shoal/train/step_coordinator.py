"""What the joins and loaders of a run do together, step by step.

a loader is asked for a batch    the last step is complete: count it, keep it, let newcomers in
a backward pass ends             one transaction for all joins it has reached
an optimizer steps               its gradients are checked before, and remembered after
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NoReturn

from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.data.source.base import WorkerPlace
from shoal.groups.base import WorkerGroup
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView
from shoal.plan.parts import check_all_used
from shoal.plan.plan import Plan
from shoal.sync.batch_tag import BatchTag
from shoal.sync.synchronizer import TransactionParticipant
from shoal.sync.trained import TrainedSamples
from shoal.train.balance import ShareBalancer
from shoal.train.catchup.donor import StateDonor
from shoal.train.checkpoint.coordinator import CheckpointCoordinator
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.checkpoint.sync_schedule import SyncSchedule
from shoal.train.dealing import SampleDealing
from shoal.train.fingerprint import fingerprint
from shoal.train.joined import JoinedModels
from shoal.train.ledger import LedgerWriter
from shoal.train.numerics import NonFiniteGuard
from shoal.train.own_loop import NO_OPTIMIZER, OwnLoop
from shoal.train.plan_switch import UNREPEATABLE, PlanSwitcher
from shoal.train.progress import StepProgress
from shoal.train.script_state import ScriptState
from shoal.train.stages import WorkerStages
from shoal.train.step_transaction import StepTransaction
from shoal.train.stepcheck import StepCheck


class StepCoordinator(MembershipListener):
    """The observer of every join, and the owner of the run's steps; `dealing` observes its loaders."""

    checkpoints: CheckpointCoordinator | None = None
    ledger: LedgerWriter | None = None
    resume: ResumeState | None = None
    balancer: ShareBalancer | None = None
    switcher: PlanSwitcher | None = None
    stages: WorkerStages | None = None

    def __init__(self, group: WorkerGroup, progress: StepProgress) -> None:
        self.group, self.progress = group, progress
        self.joined: list[JoinedModels] = []
        self._donor = StateDonor(group, self.joined)
        self.transaction = StepTransaction(group.session, self._announce)
        self._guards: dict[int, NonFiniteGuard] = {}
        self._step_check = StepCheck()
        self._quiet = self._between = self._parts_checked = False
        self.dealing = SampleDealing(self, self._step_check.agreed)
        self.rounds = self.dealing.rounds
        progress.reports += [self.rounds.told, self.rounds.told_servers, self.rounds.told_datagrams]
        self.states: list[ScriptState] = []
        """What the script keeps in `run.state`."""
        self._loop = OwnLoop(group, progress, self.states)
        self._view = group.session.view
        self.where: Callable[[], TrainingPosition]
        self.boundary: tuple[TrainingPosition, SyncSchedule] | None = None
        """Where the training stood when newcomers were let in, until they have their state."""
        group.session.listeners.add(self, ListenerStage.training)

    def place(self) -> WorkerPlace:
        """This worker among those that are dealt samples next."""
        dealt = self.group.session.committed_view
        shares = self.balancer.shares(dealt.members) if self.balancer is not None else ()
        return WorkerPlace(dealt.rank(self.group.session.member), len(dealt), shares)

    @property
    def _replicas_equal(self) -> bool:
        return all(joined.synchronizer.replicas_equal for joined in self.joined)

    def add(self, joined: JoinedModels) -> None:
        first = not any(other.members.optimizers for other in self.joined)
        if self.group.size == 1 or not joined.alone:
            self._guards[id(joined)] = NonFiniteGuard(
                self.group,
                self.progress.sink,
                alone=not joined.lockstep,
                own=lambda: joined.evidence.bad,
                batch=self.dealing.samples,
                step=lambda: self.progress.step,
            )
        # a single worker's loss is that of all
        several = self.group.size > 1
        joined.hook_steps(first, partial(self.dealing.share_loss, joined.members.loss) if several else None)
        self.dealing.batches.ledger = self.ledger
        self.joined.append(joined)
        self.rounds.check_joins()
        self._step_check.add(joined)
        self.dealing.start_at_end(short=False)
        # its steps cannot be made again among those who stay, so a loss ends the run
        if not joined.alone and not joined.exchange.retryable:
            self.group.session.forbid_loss(UNREPEATABLE)

    def check_parts(self, plan: Plan) -> None:
        """Refuse a plan with a part that no parameter of this run is in; known once everything is joined."""
        if plan.parts:
            check_all_used(plan.patterns, [name for joined in self.joined for name in joined.members.all_names])

    def before_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """Refuse or prepare a step."""
        if not self._parts_checked and self.switcher is not None:
            self.check_parts(self.switcher.plan)
            self._parts_checked = True
        if self._quiet:
            raise UsageError(
                "optimizer.step() inside run.accumulate(): its gradients were never exchanged; step after it"
            )
        if not joined.lockstep:
            self.pass_began()  # no exchange tells of it
            self._step_began(closure)
        self._step_check.before(joined, optimizer, closure)
        if joined.deferred is not None and joined.deferred.put_off(optimizer, closure):
            return  # all workers know that the numbers are finite
        if id(joined) in self._guards:
            self._guards[id(joined)].check(optimizer)
        self._donor.before_step(joined, optimizer, closure)

    def _step_began(self, closure: bool) -> None:
        """A step of each worker's own, unless the plan was switched right before it: then all exchange its gradients,
        which a closure makes inside the step."""
        if self.rounds.synchronizers:
            self.rounds.step_began()
            self.dealing.leased.step_began()
        elif not closure and any(joined.lockstep for joined in self.joined):
            self.exchange()

    def after_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """The step is made."""
        self._step_check.after(joined, optimizer, closure)
        self.rounds.commit(self.progress.step + self.progress.stepped)
        self._donor.after_step()

    def _announce(self, participants: Sequence[TransactionParticipant]) -> None:
        """A transaction begins."""
        joins = {id(joined.synchronizer): joined for joined in self.joined}
        self.dealing.announce([joins[id(participant)] for participant in participants])  # launched in this order

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is exchanged."""
        before = self._quiet
        self._set_quiet(True)
        try:
            yield
        finally:
            self._set_quiet(before)

    def _set_quiet(self, quiet: bool) -> None:
        self._quiet = quiet
        for joined in self.joined:
            if joined.backward is not None:
                joined.backward.quiet = quiet

    def final_fingerprint(self) -> str:
        """Of what all workers must hold alike when the script has ended; empty if it went on with them after its last
        step, as scripts do that export or evaluate on one worker."""
        comparable = self.checkpoints is not None and not self.dealing.some_short and self.dealing.stood_in is None
        comparable = comparable and self._replicas_equal
        return f"{fingerprint(self.joined):016x}" if comparable and self._step_check.untouched else ""

    def exchange(self) -> None:
        """Exchange what every `p.grad` holds now."""
        if self._quiet:
            raise UsageError("run.exchange() inside run.accumulate(), where nothing is exchanged; call it after it")
        if not self.joined:
            raise UsageError("exchange() has no model; give one to join() first")
        for joined in self.joined:
            if joined.lockstep:
                joined.exchange_gradients()

    def settle(self) -> None:
        """Leave nothing under way: what follows is no training."""
        for joined in self.joined:
            if not self.rounds.synchronizers:
                joined.settle()
        self.rounds.leave(None)

    def batch_tag(self) -> BatchTag:
        return self.dealing.batches.tag

    def agree_on_batches(self) -> set[str]:
        return self.dealing.agree_on_batches()

    def round_share(self) -> float | None:
        leased = self.dealing.leased.share()
        return self.rounds.share() if leased is None else leased

    def leased_from(self, place: int) -> list[TrainedSamples]:
        return self.dealing.leased.leased_from(place)

    def round_launched(self) -> None:
        self.dealing.batches.launch()

    def round_landed(self, view: MembershipView) -> None:
        self.dealing.batches.land(view)

    def wants_boundary(self) -> bool:
        """Whether this worker knows of something that waits for a moment at which all replicas are equal."""
        due = self.checkpoints is not None and self.checkpoints.is_due(self.progress.step + self.progress.stepped)
        return due or self.group.session.proposed or self.group.board.stopping

    def weigh_openly(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.shares.weigh_openly(counts)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """Inside, parameters hold what all workers agreed on last."""
        with ExitStack() as stack:
            for joined in self.joined:
                stack.enter_context(joined.synchronizer.agreed_parameters())
            yield

    def step_ended(self, number: int) -> None:
        """`number` steps are made: count them, keep them, let newcomers in."""
        if any(joined.synchronizer.is_round_open for joined in self.joined):  # nothing counts yet, nobody may enter
            return
        # checkpoints and newcomers read the parameters, which under some paces differ between workers
        with self.agreed_parameters():
            self._close_step(number)

    def _close_step(self, number: int) -> None:
        # first: the ledger leaves out what is given back
        self.dealing.return_what_was_lost()
        if self.ledger is not None:
            self.ledger.commit(number)
        if self.checkpoints is not None:
            # after the ledger, whose entries a checkpoint ends at this step
            self.checkpoints.step_ended(number, self.progress.samples_now)
        self.boundary = None  # all members have taken part in a step since
        if self.switcher is not None:
            self.switcher.step_ended()
        if self.stages is not None:
            self.stages.step_ended()
        self._donor.between_steps()
        if self._is_wanted_back():
            self._leave()
        # near the end of a pass a newcomer would get no batch of it
        admits = self.dealing.enough_left()
        if admits or self.dealing.is_pass_over:
            self._between = True
            self.rounds.begin_steps(number, admits)
            self._between = False
        if self.switcher is not None:
            self.switcher.agree_on_optimizers(self.joined)

    def pass_began(self) -> None:
        """A part of a step begins that others may wait for. In a script without a loader newcomers may enter here."""
        if not any(joined.members.optimizers for joined in self.joined):
            self._loop.warn(NO_OPTIMIZER)
        if self._loop.comes_round():
            self.step_ended(self.progress.step)

    def begin_loop(self) -> None:
        """The script goes on from a state."""
        self._loop.begin()

    def _is_wanted_back(self) -> bool:
        """Whether the user of a joined machine wants it back, or takes this worker out of the run."""
        board = self.group.board
        return (self.group.remote and board.stopping) or board.is_leaving(self.group.slot)

    def _leave(self) -> NoReturn:
        """What this worker was dealt next is dealt again to the others."""
        session = self.group.session
        assert isinstance(session, ElasticSession)
        session.leave_early()
        # for the launcher this is a script that has come to its end
        raise SystemExit(0)

    def stand(self) -> tuple[TrainingPosition, SyncSchedule]:
        """Where the training stands between two steps, and when the workers meet."""
        return self.where(), self.checkpoints.schedule if self.checkpoints is not None else SyncSchedule()

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        """The members have changed."""
        session, old, self._view = self.group.session, self._view, view
        # first: under another plan every join has another synchronizer, which hears of this view
        if self.switcher is not None and self.switcher.follow(view, self.joined, self.balancer, self.checkpoints):
            self._begin_plan()
        for joined in self.joined:
            joined.synchronizer.on_view_change(old, view)
        if self._between:  # newcomers may have entered in a view that this worker never saw
            self.boundary = self.stand()
            if self.ledger is not None:
                self.ledger.cut(self.boundary[0].step)
        if newcomers and session.gives:
            with self.agreed_parameters():  # another donor may have been lost in the middle of a round
                self._donor.hand_over(*(self.boundary or self.stand()))
        self._donor.follow(view)

    def _begin_plan(self) -> None:
        """All joins have been replaced."""
        for joined in self.joined:
            if id(joined) in self._guards:
                self._guards[id(joined)].alone = not joined.lockstep
        self._step_check.begin_plan()
        self._step_check.agreed()
        self.dealing.begin_plan()
        self._set_quiet(self._quiet)
