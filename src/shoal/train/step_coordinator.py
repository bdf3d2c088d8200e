"""All that a run has joined, and the steps in which some workers have no sample."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import msgspec
import torch
from torch.optim import Optimizer

from shoal.core.errors import PayloadError, PeerLost, UsageError
from shoal.data.loader import LoaderPass
from shoal.data.remaining import RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.groups.base import WorkerGroup
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView
from shoal.train.balance import ShareBalancer
from shoal.train.batches import DealtBatches
from shoal.train.catchup.sender import CatchUpSender
from shoal.train.checkpoint import handover
from shoal.train.checkpoint.coordinator import CheckpointCoordinator, SyncSchedule
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.closures import MARK, SharedLoss, combine_losses, read_loss
from shoal.train.fingerprint import fingerprint
from shoal.train.joined import JoinedModels
from shoal.train.ledger import LedgerWriter
from shoal.train.numerics import NonFiniteGuard, NonFiniteReport
from shoal.train.progress import StepProgress
from shoal.train.script_state import ScriptState
from shoal.train.state import adopt_gradients, adopt_state
from shoal.train.state_check import check_states
from shoal.train.stepcheck import StepCheck

_DONE, _AGREED, _SHORT = b"done", b"agreed", b"short"
NO_COUNTERS = (
    "the script joins no loader and keeps its counters elsewhere than in run.state(…): a worker that is lost cannot "
    "come back, and --resume starts its loop from the beginning"
)
NO_OPTIMIZER = (
    "the script joins no optimizer: gradients are averaged, but no step is counted, there are no checkpoints and no "
    "comparisons of replicas; give join() the optimizer, if there is one"
)
NO_LENDER = "the donor lends nothing"
_EXPLICIT = b"!"
"""After the number of a join: the exchange is one of `run.exchange`."""


class StepCoordinator(MembershipListener):
    """The observer of every joined loader."""

    keeper: CheckpointCoordinator | None = None
    ledger: LedgerWriter | None = None
    resume: ResumeState | None = None
    balancer: ShareBalancer | None = None

    def __init__(self, group: WorkerGroup, progress: StepProgress) -> None:
        self.group, self.progress = group, progress
        self.joined: list[JoinedModels] = []
        desk = group.state_stream_server()
        self.lender = CatchUpSender(desk, self.joined) if desk is not None else None
        self._guards: dict[int, NonFiniteGuard] = {}
        self._step_check = StepCheck()
        self._quiet = self._some_short = self._between = self._nobody_trains = False
        self._stood_in: int | None = None
        """The number of a step this worker had no sample in, until the loader goes on."""
        self._batch: tuple[LoaderPass, LoaderStep] | None = None
        self.batches = DealtBatches(
            group, lambda: sum(joined.arrivals for joined in self.joined), lambda n: progress.counted(-n)
        )
        self.states: list[ScriptState] = []
        """What the script keeps in `run.state`."""
        self._looped = (progress.step, 0)
        """The step, and how often the script had assigned to its state, when a loop of its own last came round."""
        self._warned = False
        self._first: JoinedModels | None = None
        """Whose exchange comes first in a step."""
        self.where: Callable[[], TrainingPosition]
        self.boundary: tuple[TrainingPosition, SyncSchedule] | None = None
        """Where the training stood when newcomers were let in, until they have their state."""
        group.session.listeners.add(self, ListenerStage.training)

    def place(self) -> WorkerPlace:
        """This worker among those that are dealt samples next."""
        dealt = self.group.session.committed_view
        shares = self.balancer.shares(dealt.members) if self.balancer is not None else ()
        return WorkerPlace(dealt.rank(self.group.session.member), len(dealt), shares)

    def add(self, joined: JoinedModels) -> None:
        first = not any(other.members.optimizers for other in self.joined)
        if self.group.size == 1 or not joined.alone:
            self._guards[id(joined)] = NonFiniteGuard(
                self.group,
                self.progress.sink,
                alone=joined.alone,
                own=lambda: joined.pace.evidence.bad,
                batch=self._samples,
                step=lambda: self.progress.step,
            )
        joined.listen(self._before_step, self._after_step, first)
        joined.tag = lambda: self.batches.tag
        joined.differ = self._agree_on_batches
        joined.begins = self.own_loop
        if self.group.size > 1 and not joined.alone:
            joined.share_loss = partial(self._share_loss, joined.members.loss)
        self.batches.ledger = self.ledger
        self.joined.append(joined)
        self._step_check.add(joined)
        if len(self.joined) > 1 and self.group.session.elastic:
            for one in self.joined:
                one.take_turns()
        if not joined.alone and not joined.exchange.retryable:
            self.group.session.forbid_loss("this plan cannot repeat a step without it")

    def _before_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        if self._quiet:
            raise UsageError(
                "optimizer.step() inside run.accumulate(): its gradients were never exchanged; step after it"
            )
        if joined.alone:
            self.own_loop()  # no exchange tells of it
        self._step_check.before(joined, optimizer, closure)
        if joined.deferred is not None and joined.deferred.put_off(optimizer, closure):
            return  # all workers know that the numbers are finite
        if id(joined) in self._guards:
            self._guards[id(joined)].check(optimizer)
        if self.lender is not None:
            self.lender.updating(joined, optimizer, closure)

    def _after_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        self._step_check.after(joined, optimizer, closure)
        if self.lender is not None:
            self.lender.updated()

    def _share_loss(self, kind: str, loss: float) -> float:
        count = self._batch[1].counts[self.place().rank] if self._batch is not None else 1
        data = msgspec.json.encode(SharedLoss(repr(loss), max(1, count)))
        return combine_losses(self.group.gather(data, check=self._read), kind)

    def _samples(self) -> tuple[list[int], list[str]]:
        """Positions and names of the samples this worker was given last."""
        if self._batch is None:
            return [], []
        run, step = self._batch
        places = run.loader.own_places(step)
        return places, [str(name) for name in run.loader.names(run.turn, places)]

    def announce(self, joined: JoinedModels) -> None:
        """Workers that are short of samples learn which exchange they are waited for in.

        Not before the backward pass has ended: it may begin exchanges of several joined models.
        """
        if self._first is None:
            self._first = joined
        if self._some_short:
            self.group.gather(str(self.joined.index(joined)).encode() + (_EXPLICIT if joined.explicit else b""))

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
        return f"{fingerprint(self.joined):016x}" if comparable and self._step_check.untouched else ""

    def exchange(self) -> None:
        """Exchange what every `p.grad` holds now."""
        if self._quiet:
            raise UsageError("run.exchange() inside run.accumulate(), where nothing is exchanged; call it after it")
        if not self.joined:
            raise UsageError("exchange() has no model; give one to join() first")
        for joined in self.joined:
            if not joined.alone:
                joined.exchange_gradients()

    def settle(self) -> None:
        """Make all updates that were put off: what follows is no training."""
        for joined in self.joined:
            joined.settle()

    def weigh_openly(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.weigh_openly(counts)

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def continued(self) -> None:
        if self.resume is not None:
            self.resume.go_on(self.joined)

    def load_began(self) -> None:
        """The script asks for a batch: whatever its last step came to is complete now."""
        self._settle()
        if self._stood_in is not None:
            self.progress.step, self._stood_in = self._stood_in, None
            self._step_ended(self.progress.step)
        elif self.progress.stepped:
            self._step_ended(self.progress.step + 1)
        self.progress.load_began()

    def _step_ended(self, number: int) -> None:
        self._return_what_was_lost()
        if self.ledger is not None:
            self.ledger.commit(number)
        if self.keeper is not None:
            self.keeper.step_ended(number, self.progress.samples_now)
        self.boundary = None  # all members have taken part in a step since
        self.group.transfer.release()
        if self.lender is not None:
            self.lender.between()
        if self.group.remote and self.group.board.stopping:
            self._leave()
        if self._enough_left():
            self._between = True
            self.group.session.begin(number)
            self._between = False

    def own_loop(self) -> None:
        """A script without a loader begins the part of its loop that others wait for: the next step, if it has counted
        the last one in its state. Newcomers, who begin their loop with the same state, may enter here."""
        if not any(joined.members.optimizers for joined in self.joined):
            self._warn(NO_OPTIMIZER)
        step, changes = self.progress.step, sum(state.changes for state in self.states)
        if self.progress.has_loader or step == self._looped[0]:
            return
        if not self.states:
            self._looped = (step, changes)
            if self.group.session.elastic:
                self._warn(NO_COUNTERS)
        elif changes != self._looped[1]:
            self._looped = (step, changes)
            self._step_ended(step)

    def begin_loop(self) -> None:
        """The script goes on from a state; the loop comes round with the step after the next."""
        self._looped = (self.progress.step, sum(state.changes for state in self.states))

    def _warn(self, text: str) -> None:
        """Once, and the first such thing only."""
        if not self._warned:
            self._warned = True
            self.progress.warn(text)
            if self.group.rank == 0:
                sys.stderr.write(f"shoal: {text}\n")

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
        session = self.group.session
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
        made = next((joined.formed for joined in self.joined if joined.exchanged), self.group.session.view)
        for batch in self.batches.take():
            if places := batch.of_members(lambda member: member not in made):
                batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
                if self.ledger is not None:
                    self.ledger.returned(batch.step, places)

    def next_step(self, run: LoaderPass, step: LoaderStep | None) -> None:
        """A batch that the script skipped may be one that others train on: if the next one cannot take its place in
        their step, because there is none or it has other numbers of samples, take part in that step without samples."""
        if not self.batches.close(run) or self._batch is None:
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
        (self._first or self.joined[0]).stand_in()
        self.batches.waits = False
        if not self._nobody_trains:
            self._follow()
        elif self.batches.ends and self.ledger is not None:
            self.ledger.commit(self.progress.step, skipped_only=True)

    def _agree_on_batches(self) -> set[str]:
        absent, self._nobody_trains = self.batches.agree()
        if absent and not self._nobody_trains and not self.batches.waits:
            self._some_short = True  # they follow what this step comes to
            for joined in self.joined:
                joined.pace.inner.late = True
        return absent if not self._nobody_trains else set()

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        self._batch = (run, step)
        self.batches.add(run, step)

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.progress.load_ended(counts[self.place().rank])
        self._some_short = 0 in counts and any(not joined.alone for joined in self.joined)
        self._weigh(counts)

    def short(self, counts: tuple[int, ...]) -> None:
        if all(joined.alone for joined in self.joined):
            return
        self._weigh(counts)
        self._follow()

    def _follow(self) -> None:
        """Stand in for all exchanges of those with samples, and take over what their step came to."""
        said, givers = self._hear(_SHORT)
        while said not in (_DONE, _AGREED, _SHORT):
            if not said.startswith(b"{"):  # else the others tell of a loss, or of numbers that are not finite
                self.joined[_join_of(said)].stand_in(explicit=said.endswith(_EXPLICIT))
            said, givers = self._hear(_SHORT)
        if said == _SHORT:  # all that had samples are lost, or skip them: nobody makes this step
            self.batches.agree()
            self._return_what_was_lost()
            if self.ledger is not None:
                self.ledger.commit(self.progress.step, skipped_only=True)
            return
        if not self._adopt(said == _AGREED, givers):
            self._undo_step()
            return
        number = int(next(filter(None, self.group.gather(b"", check=_read_step))))
        self._stood_in = number if number > self.progress.step else None

    def _read(self, said: bytes) -> None:
        """Raise for what no worker says here; those that are remote are not believed (`WorkerGroup.gather`)."""
        if said.startswith(MARK):
            read_loss(said)
        elif said.startswith(b"{"):
            msgspec.json.decode(said, type=NonFiniteReport)
        elif said not in (_DONE, _AGREED, _SHORT) and _join_of(said) not in range(len(self.joined)):
            raise PayloadError(f"{said[:20]!r} is no join of {len(self.joined)}")

    def _hear(self, word: bytes) -> tuple[bytes, list[str]]:
        """What those with samples say, and who they are; `short` if there is nobody left of them."""
        words = self.group.gather(word, check=self._read)
        members = self.group.session.committed_view.members
        having = [(said, member) for said, member in zip(words, members, strict=True) if said != _SHORT]
        return having[0][0] if having else _SHORT, [member for _, member in having]

    def finished(self, run: LoaderPass) -> None:
        if self.ledger is not None:
            self.ledger.finished(run, self.progress.step + self.progress.stepped)

    def exhausted(self, run: LoaderPass | None = None) -> None:
        self.settle()
        self._settle()
        if self.ledger is not None:
            if self.progress.stepped:  # the script left the pass after a step
                self.ledger.commit(self.progress.step + 1)
            if run is not None:
                self.ledger.forget(run)
        self.batches.forget(run)
        self._weigh((1,) * len(self.group.session.committed_view))
        self.progress.pause()

    def _weigh(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.weigh(counts, late=0 in counts)

    def _settle(self) -> None:
        """After a step in which some had nothing: hand them what it came to."""
        if self._some_short and self._skipped_all():
            self._some_short = False
            self.batches.waits = True
            self._follow()
            self.batches.waits = False
        elif self._some_short:
            self._some_short = False
            agreed = all(joined.agreed or not joined.exchanged for joined in self.joined)
            said, givers = self._hear(_AGREED if agreed and any(j.exchanged for j in self.joined) else _DONE)
            self._adopt(said == _AGREED, givers)
            self.group.gather(str(self.progress.step + self.progress.stepped).encode())

    def _skipped_all(self) -> bool:
        """Whether the script has left out the batch that it was given last."""
        return self._batch is not None and self.batches.close(self._batch[0])

    def _undo_step(self) -> None:
        """Only remote workers had samples in this step, and they are lost with what it came to: deal them again."""
        for batch in self.batches.take():
            places = batch.of_members(lambda member: True)
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
            if self.ledger is not None:
                self.ledger.returned(batch.step, places)

    def _adopt(self, gradients: bool, givers: Sequence[str]) -> bool:
        """False: all that know the state are lost, and nothing has changed."""
        for number, joined in enumerate(self.joined):
            members = joined.members
            tensors = [*members.parameters, *joined.kept().values()]
            check = partial(check_states, parameters=members.parameters)
            models, optimizers = members.models, members.optimizers
            if not adopt_state(self.group, models, optimizers, tensors, givers, members.stateful, check):
                if number:
                    raise PeerLost(
                        f"worker {self.group.rank} stops: who knew the state was lost while it was handed on"
                    )
                return False
            if gradients:
                adopt_gradients(self.group, members.parameters, givers)
        return True


def _join_of(said: bytes) -> int:
    """The join whose exchange is announced."""
    return int(said.removesuffix(_EXPLICIT))


def _read_step(said: bytes) -> None:
    if said and not 0 <= int(said) < 1 << 53:
        raise PayloadError(f"{said[:20]!r} is no step")
