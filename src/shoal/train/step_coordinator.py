"""What the joins and loaders of a run do together, step by step.

a loader is asked for a batch    the last step is complete: count it, keep it, let newcomers in
a backward pass ends             one transaction for all joins it has reached
an optimizer steps               its gradients are checked before, and remembered after
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import torch
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.data.loader import LoaderPass
from shoal.data.remaining import RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.groups.base import WorkerGroup
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView
from shoal.sync.batch_tag import BatchTag
from shoal.sync.synchronizer import TransactionParticipant
from shoal.train.balance import ShareBalancer
from shoal.train.batches import DealtBatches
from shoal.train.catchup.sender import CatchUpSender
from shoal.train.checkpoint import handover
from shoal.train.checkpoint.coordinator import CheckpointCoordinator, SyncSchedule
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.fingerprint import fingerprint
from shoal.train.joined import JoinedModels
from shoal.train.ledger import LedgerWriter
from shoal.train.local_rounds import LocalRounds
from shoal.train.numerics import NonFiniteGuard
from shoal.train.own_loop import NO_OPTIMIZER, OwnLoop
from shoal.train.plan_switch import UNREPEATABLE, PlanSwitcher
from shoal.train.progress import StepProgress
from shoal.train.script_state import ScriptState
from shoal.train.short_steps import ShortSteps
from shoal.train.step_transaction import StepTransaction
from shoal.train.stepcheck import StepCheck

NO_LENDER = "the donor lends nothing"


class StepCoordinator(MembershipListener):
    """The observer of every loader and every join."""

    keeper: CheckpointCoordinator | None = None
    ledger: LedgerWriter | None = None
    resume: ResumeState | None = None
    balancer: ShareBalancer | None = None
    switcher: PlanSwitcher | None = None

    def __init__(self, group: WorkerGroup, progress: StepProgress) -> None:
        self.group, self.progress = group, progress
        self.joined: list[JoinedModels] = []
        desk = group.state_stream_server()
        self.lender = CatchUpSender(desk, self.joined) if desk is not None else None
        self.transaction = StepTransaction(group.session, self._announce)
        self._short_steps = ShortSteps(group, self.joined, self.transaction, self._undo_step)
        self._guards: dict[int, NonFiniteGuard] = {}
        self._step_check = StepCheck()
        self._quiet = self._some_short = self._between = self._nobody_trains = False
        self._stood_in: int | None = None
        """The number of a step this worker had no sample in, until the loader goes on."""
        self._asked: float | None = None
        """When the script has asked for a batch, while the step before it is not closed yet."""
        self._batch: tuple[LoaderPass, LoaderStep] | None = None
        self.batches = DealtBatches(
            group,
            lambda: sum(joined.arrivals for joined in self.joined) + self.rounds.arrivals,
            lambda n: progress.counted(-n),
        )
        self.rounds = LocalRounds(group.session, self.joined, self.batches, progress, self._step_check.agreed)
        progress.reports.append(self.rounds.told)
        self.states: list[ScriptState] = []
        """What the script keeps in `run.state`."""
        self._loop = OwnLoop(group, progress, self.states)
        self._first: list[JoinedModels] = []
        """Whose exchange comes first in a step."""
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
    def _lockstep(self) -> bool:
        """Whether any part takes part in the others' backward passes."""
        return any(joined.lockstep for joined in self.joined)

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
                batch=self._samples,
                step=lambda: self.progress.step,
            )
        shared = self.group.size > 1 and joined.lockstep
        joined.hook_steps(first, partial(self._share_loss, joined.members.loss) if shared else None)
        self.batches.ledger = self.ledger
        self.joined.append(joined)
        self._step_check.add(joined)
        self._start_at_end(short=False)
        if not joined.alone and not joined.exchange.retryable:
            self.group.session.forbid_loss(UNREPEATABLE)

    def _start_at_end(self, short: bool) -> None:
        """Nothing leaves before a backward pass has ended if some worker is `short` of samples, which is said first.

        Nor if a pass may reach several joins: all of them are one operation of the members, who may change.
        """
        self.transaction.starts_at_end = short or (len(self.joined) > 1 and self.group.session.elastic)

    def before_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """Refuse or prepare a step."""
        if self._quiet:
            raise UsageError(
                "optimizer.step() inside run.accumulate(): its gradients were never exchanged; step after it"
            )
        if not joined.lockstep:
            self.pass_began()  # no exchange tells of it
            self.rounds.step_began()
        self._step_check.before(joined, optimizer, closure)
        if joined.deferred is not None and joined.deferred.put_off(optimizer, closure):
            return  # all workers know that the numbers are finite
        if id(joined) in self._guards:
            self._guards[id(joined)].check(optimizer)
        if self.lender is not None:
            self.lender.updating(joined, optimizer, closure)

    def after_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """The step is made."""
        self._step_check.after(joined, optimizer, closure)
        self.rounds.commit(self.progress.step + self.progress.stepped)
        if self.lender is not None:
            self.lender.updated()

    def _share_loss(self, kind: str, loss: float) -> float:
        """Return the loss of all workers, for an optimizer that looks at it."""
        count = self._batch[1].counts[self.place().rank] if self._batch is not None else 1
        return self._short_steps.share_loss(kind, loss, max(1, count))

    def _samples(self) -> tuple[list[int], list[str]]:
        """Positions and names of the samples this worker was given last."""
        if self._batch is None:
            return [], []
        run, step = self._batch
        places = run.loader.own_places(step)
        return places, [str(name) for name in run.loader.names(run.turn, places)]

    def _announce(self, participants: Sequence[TransactionParticipant]) -> None:
        """Workers that are short of samples learn which exchanges they are waited for in."""
        joins = {id(joined.synchronizer): joined for joined in self.joined}
        parts = [joins[id(participant)] for participant in participants]  # launched in this order
        if not self._first:
            self._first = parts
        if self._some_short:
            self._short_steps.announce(parts)

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
        comparable = self.keeper is not None and not self._some_short and self._stood_in is None
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

    def round_share(self) -> float | None:
        return self.rounds.share()

    def weigh_openly(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.shares.weigh_openly(counts)

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def continued(self) -> None:
        if self.resume is not None:
            self.resume.go_on(self.joined)

    def load_began(self) -> None:
        """The script asks for a batch: whatever its last step came to is complete now."""
        self._settle()
        self.rounds.close_others()
        if self._stood_in is not None:
            self.progress.step, self._stood_in = self._stood_in, None
            self._step_ended(self.progress.step)
        elif self.progress.stepped:
            self._step_ended(self.progress.step + 1)
            if self.rounds.synchronizers:  # the round that may end this pass belongs to its last step
                self._asked = now()
                return
        self.progress.load_began()

    def _step_ended(self, number: int) -> None:
        if not self._replicas_equal:  # a round is open: nothing counts yet, and nobody may enter
            return
        self._return_what_was_lost()
        if self.ledger is not None:
            self.ledger.commit(number)
        if self.keeper is not None:
            self.keeper.step_ended(number, self.progress.samples_now)
        self.boundary = None  # all members have taken part in a step since
        if self.switcher is not None:
            self.switcher.step_ended()
        self.group.transfer.release()
        if self.lender is not None:
            self.lender.between()
        if self.group.remote and self.group.board.stopping:
            self._leave()
        if self._enough_left():
            self._between = True
            if self.rounds.synchronizers:
                self.rounds.begin_steps(number)
            else:
                self.group.session.begin(number)
            self._between = False

    def pass_began(self) -> None:
        """A part of a step begins that others may wait for. In a script without a loader newcomers may enter here."""
        if not any(joined.members.optimizers for joined in self.joined):
            self._loop.warn(NO_OPTIMIZER)
        if self._loop.comes_round():
            self._step_ended(self.progress.step)

    def begin_loop(self) -> None:
        """The script goes on from a state."""
        self._loop.begin()

    def _leave(self) -> NoReturn:
        """The user of a joined machine wants it back. What this worker was dealt next is dealt again to the others."""
        session = self.group.session
        assert isinstance(session, ElasticSession)
        session.leave_early()
        raise SystemExit(0)

    def _enough_left(self) -> bool:
        """Whether newcomers would get a batch of this pass too: a script counts on one."""
        if not self.progress.has_loader:
            return self.group.session.elastic
        if self._batch is None or not self.group.session.elastic:
            return False
        run, step = self._batch
        items = run.loader.facts[1]
        return items is None or run.left.get(step.stream, RemainingSamples()).count(items) >= 2 * self.group.size + 2

    def stand(self) -> tuple[TrainingPosition, SyncSchedule]:
        """Where the training stands between two steps, and when the workers meet."""
        return self.where(), self.keeper.agenda if self.keeper is not None else SyncSchedule()

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        """The members have changed."""
        session, old, self._view = self.group.session, self._view, view
        if self.switcher is not None:
            self.switcher.follow(view, self.joined, self.balancer, self.keeper)
        for joined in self.joined:
            joined.synchronizer.on_view_change(old, view)
        if self._between:  # newcomers may have entered in a view that this worker never saw
            self.boundary = self.stand()
            if self.ledger is not None:
                self.ledger.cut(self.boundary[0].step)
        if newcomers and session.gives:
            self._hand_over()
        if self.lender is not None:
            self.lender.change(view.members)

    def _hand_over(self) -> None:
        """Newcomers wait for the state, and this worker is the one to give it."""
        where, agenda = self.boundary or self.stand()
        lent, lender = self.group.session.lent, self.lender
        rests = {member: lender.rest(member) if lender is not None else NO_LENDER for member in lent}
        handover.give(self.group, self.joined, where, agenda, rests)

    def _return_what_was_lost(self) -> None:
        """Samples of members that did not take part in the step's exchange are dealt again."""
        made = next((joined.shares.formed for joined in self.joined if joined.exchanged), self.group.session.view)
        for batch in self.batches.take():
            if places := batch.of_members(lambda member: member not in made):
                batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
                if self.ledger is not None:
                    self.ledger.returned(batch.step, places)

    def next_step(self, run: LoaderPass, step: LoaderStep | None) -> None:
        """A batch that the script skipped may be one that others train on: if the next one cannot take its place in
        their step, because there is none or it has other numbers of samples, take part in that step without samples.
        Under `local(…)` the last round of a pass ends here: what a lost worker had is dealt in the same pass."""
        if step is None and self.rounds.synchronizers and self._trains(run):
            self.rounds.close()
            self._step_ended(self.progress.step + self.progress.stepped)
        if self._asked is not None:
            self.progress.load_began(self._asked if step is not None else None)
            self._asked = None
        if not self._lockstep or not self.batches.close(run) or self._batch is None:
            return
        if step is not None and step.counts == self._batch[1].counts and 0 not in step.counts:
            return
        if self._trains(run):
            self.batches.ends = step is None
            self._take_part_without()
            self.batches.ends = False
            self.load_began()

    def _trains(self, run: LoaderPass) -> bool:
        """Whether a pass is for training; one that nobody trains on may be gone through by some workers only."""
        if all(joined.alone for joined in self.joined):
            return False
        modes = any(model.training for joined in self.joined for model in joined.members.models)
        return run.trained or (torch.is_grad_enabled() and modes)

    def _take_part_without(self) -> None:
        """Join the others' step with nothing. They have not been told that this worker will."""
        self.batches.waits = True
        self._short_steps.take_part(self._first or self.joined[:1])
        self.batches.waits = False
        if not self._nobody_trains:
            self._follow()
        elif self.batches.ends and self.ledger is not None:
            self.ledger.commit(self.progress.step, skipped_only=True)

    def batch_tag(self) -> BatchTag:
        return self.batches.tag

    def agree_on_batches(self) -> set[str]:
        absent, self._nobody_trains = self.batches.agree()
        if absent and not self._nobody_trains and not self.batches.waits:
            self._some_short = True  # they follow what this step comes to
            self._start_at_end(short=True)
        return absent if not self._nobody_trains else set()

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        self._batch = (run, step)
        # a round may take hundreds of steps: their samples are not kept in memory
        self.batches.add(run, step._replace(batch=None) if self.rounds.synchronizers else step)

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.progress.load_ended(counts[self.place().rank])
        self._some_short = 0 in counts and self._lockstep
        self._weigh(counts)

    def short(self, counts: tuple[int, ...]) -> None:
        """This worker has no sample in the step that others make next."""
        if self._lockstep:
            self._weigh(counts)
            self._follow()
        elif any(not joined.alone for joined in self.joined):
            self._stood_in = self.progress.step + 1  # all workers count the same steps
            self.rounds.step_began()
            for joined in self.joined:
                joined.synchronizer.skip_step()
            self.rounds.commit(self._stood_in)

    def _follow(self) -> None:
        """Take part in what those with samples do, and take over what their step came to."""
        number = self._short_steps.follow()
        if number is not None:
            self._stood_in = number if number > self.progress.step else None
            return
        # all that had samples are lost, or skip them: nobody makes this step
        self.batches.agree()
        self._return_what_was_lost()
        if self.ledger is not None:
            self.ledger.commit(self.progress.step, skipped_only=True)

    def finished(self, run: LoaderPass) -> None:
        if self.ledger is not None:
            self.ledger.finished(run, self.progress.step + self.progress.stepped)

    def exhausted(self, run: LoaderPass | None = None) -> None:
        if not self.rounds.synchronizers:
            self.settle()
        elif run is not None and self._trains(run):
            self.rounds.leave(run)
        self._asked = None
        self._settle()
        if self.ledger is not None:
            if self.progress.stepped and not self.rounds.synchronizers:  # the script left the pass after a step
                self.ledger.commit(self.progress.step + 1)
            if run is not None:
                self.ledger.forget(run)
        self.batches.forget(run)
        self._weigh((1,) * len(self.group.session.committed_view))
        self.progress.pause()

    def _weigh(self, counts: Sequence[int]) -> None:
        self._start_at_end(short=0 in counts)
        for joined in self.joined:
            joined.weigh(counts)

    def _settle(self) -> None:
        """After a step in which some had nothing: hand them what it came to."""
        if not self._some_short:
            return
        self._some_short = False
        if self._skipped_all():
            self.batches.waits = True
            self._follow()
            self.batches.waits = False
        else:
            self._short_steps.hand_over(self.progress.step + self.progress.stepped)

    def _undo_step(self) -> None:
        """Only remote workers had samples in this step, and they are lost with what it came to: deal them again."""
        for batch in self.batches.take():
            places = batch.of_members(lambda member: True)
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
            if self.ledger is not None:
                self.ledger.returned(batch.step, places)

    def _skipped_all(self) -> bool:
        """Whether the script has left out the batch that it was given last."""
        return self._batch is not None and self.batches.close(self._batch[0])
