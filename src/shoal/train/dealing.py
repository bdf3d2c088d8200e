"""Connects loaders and steps: how many samples each worker has in a step, and what a worker without samples does.

load_began          the last step is complete: workers without samples in it receive its result
next_step, dealt    the next batch; if this worker's script skipped the last one, the others may still train on it
load_ended          this worker has samples: its share of the mean is set
short               it has none: it takes part in the others' exchanges with zeros (`train/short_steps.py`)
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from shoal.core.clock import now
from shoal.data.loader_pass import LoaderPass
from shoal.data.remaining import RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.groups.base import WorkerGroup
from shoal.train.batches import DealtBatches
from shoal.train.checkpoint.resume import ResumeState
from shoal.train.joined import JoinedModels
from shoal.train.leased_rounds import LeasedRounds
from shoal.train.ledger import LedgerWriter
from shoal.train.local_rounds import LocalRounds
from shoal.train.progress import StepProgress
from shoal.train.short_steps import ShortSteps
from shoal.train.step_transaction import StepTransaction


class StepOwner(Protocol):
    """The part of `StepCoordinator` that this module needs: it owns the steps of a run and ends them."""

    group: WorkerGroup
    progress: StepProgress
    joined: list[JoinedModels]
    transaction: StepTransaction
    ledger: LedgerWriter | None
    resume: ResumeState | None

    def place(self) -> WorkerPlace:
        """This worker among those that are dealt samples next."""

    def step_ended(self, number: int) -> None:
        """End step `number`: count it, checkpoint if one is due, let newcomers in."""

    def settle(self) -> None:
        """Wait until no exchange is under way."""


class SampleDealing:
    """The `LoaderObserver` of every loader of a run. Used by the training thread."""

    def __init__(self, owner: StepOwner, agreed: Callable[[], None]) -> None:
        """`agreed` is called when a round of local steps has made all replicas equal."""
        self._owner, self.group, self.progress, self.joined = owner, owner.group, owner.progress, owner.joined
        self._short_steps = ShortSteps(self.group, self.joined, owner.transaction, self._undo_step)
        self.some_short = False
        """Whether some worker has no samples in the current step."""
        self.stood_in: int | None = None
        """The step in which this worker had no samples, until its loader continues."""
        self._nobody_trains = False
        self.is_pass_over = False
        """Whether its last round has just ended: a newcomer would get no batch of it, but the plan may change."""
        self._asked: float | None = None
        """When the script asked for a batch, while the last step is not closed yet."""
        self._batch: tuple[LoaderPass, LoaderStep] | None = None
        self.batches = DealtBatches(
            self.group,
            lambda: sum(joined.arrivals for joined in self.joined) + self.rounds.arrivals,
            lambda n: self.progress.counted(-n),
            lambda: self.rounds.steps_made,
        )
        self.rounds = LocalRounds(self.group.session, self.joined, self.batches, self.progress, agreed)
        self.leased = LeasedRounds(self.group, self.rounds)
        self._first: list[JoinedModels] = []
        """The joins whose exchange comes first in a step."""

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    @property
    def _ledger(self) -> LedgerWriter | None:
        return self._owner.ledger

    @property
    def _lockstep(self) -> bool:
        return any(joined.lockstep for joined in self.joined)

    def announce(self, parts: list[JoinedModels]) -> None:
        """Tell workers without samples which joins exchange in this step."""
        if not self._first:
            self._first = parts
        if self.some_short:
            self._short_steps.announce(parts)

    def continued(self) -> None:
        if self._owner.resume is not None:
            self._owner.resume.go_on(self.joined)

    def opened(self, run: LoaderPass) -> None:
        if self._trains(run):
            self.leased.open(run)

    def begin_plan(self) -> None:
        """All joins train by another plan, between two steps."""
        self.leased.begin_plan()

    def load_began(self) -> None:
        """The script asks for a batch, so its last step is complete."""
        self._settle()
        self.rounds.close_others()
        if self.stood_in is not None:
            # the step that the others have made counts as this worker's too
            self.progress.step, self.stood_in = self.stood_in, None
            self._owner.step_ended(self.progress.step)
        elif self.progress.stepped:
            self._owner.step_ended(self.progress.step + 1)
            if self.rounds.synchronizers:  # the round that may end this pass belongs to its last step
                self._asked = now()
                return
        self.progress.load_began()

    def next_step(self, run: LoaderPass, step: LoaderStep | None) -> None:
        """Handle a batch that this worker's script skipped and others may train on.

        If the next batch cannot take its place in their step, because there is none or its sizes differ, take part in
        that step without samples. Under `local(…)` the last round of a pass ends here, so that samples of a lost worker
        are dealt again in the same pass.
        """
        while self.leased.closes(run, step):
            self._owner.step_ended(self.leased.close(self._ledger))
            if run.leases is None or run.changed:  # the plan was switched: the loader deals what is left anew
                return
            if step is None:
                break
        goes_on = run.leases is not None and run.goes_on
        if step is None and self.rounds.synchronizers and self._trains(run) and not goes_on:
            self.rounds.close()
            if givers := self.rounds.take_givers():
                self._short_steps.adopt(gradients=False, givers=givers)
            self.is_pass_over = True
            self._owner.step_ended(self.progress.step + self.progress.stepped)
            self.is_pass_over = False
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

    def _take_part_without(self) -> None:
        """Take part in the others' step without samples, which they do not expect."""
        self.batches.waits = True
        self._short_steps.take_part(self._first or self.joined[:1])
        self.batches.waits = False
        if not self._nobody_trains:
            self._follow()
        elif self.batches.ends and self._ledger is not None:
            self._ledger.commit(self.progress.step, skipped_only=True)

    def _trains(self, run: LoaderPass) -> bool:
        """Return whether a pass is for training; other passes may be made by some workers only."""
        if all(joined.alone for joined in self.joined):
            return False
        modes = any(model.training for joined in self.joined for model in joined.members.models)
        return run.trained or (torch.is_grad_enabled() and modes)

    def agree_on_batches(self) -> set[str]:
        absent, self._nobody_trains = self.batches.agree()
        if absent and not self._nobody_trains and not self.batches.waits:
            self.some_short = True  # they receive this step's result
            self.start_at_end(short=True)
        return absent if not self._nobody_trains else set()

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        self._batch = (run, step)
        if step.lease is not None:
            self.leased.delivered(run, step)
            return
        # a round may take hundreds of steps: their samples are not kept in memory
        self.batches.add(run, step._replace(batch=None) if self.rounds.synchronizers else step)

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.progress.load_ended(counts[self._owner.place().rank])
        self.some_short = 0 in counts and self._lockstep
        leased = self._batch is not None and self._batch[1].lease is not None
        # leased samples are weighed by round, when it is known what each worker has trained
        self._weigh(counts if not leased else (1,) * len(counts))

    def short(self, counts: tuple[int, ...]) -> None:
        """This worker has no samples in the others' next step."""
        if self._lockstep:
            self._weigh(counts)
            self._follow()
        elif any(not joined.alone for joined in self.joined):
            self.stood_in = self.progress.step + 1  # all workers count the same steps
            self.rounds.step_began()
            for joined in self.joined:
                with joined.suppress_steps():  # where replicas step alike, this worker makes the others' step
                    joined.synchronizer.skip_step()
            self.rounds.commit(self.stood_in)

    def _follow(self) -> None:
        """Take part in the step of workers with samples, and receive its result."""
        number = self._short_steps.follow()
        if number is not None:
            self.stood_in = number if number > self.progress.step else None
            for joined in self.joined:
                if joined.served is not None and number:
                    # its clock at the servers goes on, so that no other worker waits for it
                    joined.served.skip_step()
            return
        # all workers that had samples are lost or skip them: no worker makes this step
        self.batches.agree()
        self.return_what_was_lost()
        if self._ledger is not None:
            self._ledger.commit(self.progress.step, skipped_only=True)

    def finished(self, run: LoaderPass) -> None:
        if self._ledger is not None:
            self._ledger.finished(run, self.progress.step + self.progress.stepped)

    def exhausted(self, run: LoaderPass | None = None) -> None:
        if not self.rounds.synchronizers:
            self._owner.settle()
        elif run is not None and self._trains(run):
            self.leased.leave(run, self._ledger)
            self.rounds.leave(run)
        self._asked = None
        self._settle()
        if self._ledger is not None:
            if self.progress.stepped and not self.rounds.synchronizers:  # the script left the pass after a step
                self._ledger.commit(self.progress.step + 1)
            if run is not None:
                self._ledger.forget(run)
        self.batches.forget(run)
        self._weigh((1,) * len(self.group.session.committed_view))  # what follows is of no loader
        self.progress.pause()

    def _weigh(self, counts: Sequence[int]) -> None:
        self.start_at_end(short=0 in counts)
        for joined in self.joined:
            joined.weigh(counts)

    def start_at_end(self, short: bool) -> None:
        """Send nothing before the backward pass has ended if some worker is `short` of samples: it is told first.

        The same holds if a pass may reach several joins, because all of them are one operation and members may change.
        """
        self._owner.transaction.starts_at_end = short or (len(self.joined) > 1 and self.group.session.elastic)

    def _settle(self) -> None:
        """After a step in which some workers had no samples, hand them its result."""
        if not self.some_short:
            return
        self.some_short = False
        # this worker made no step of the batch that others had no part of, so it has no result to give
        if self._skipped_all():
            self.batches.waits = True
            self._follow()
            self.batches.waits = False
        else:
            self._short_steps.hand_over(self.progress.step + self.progress.stepped)

    def _skipped_all(self) -> bool:
        """Return whether the script has skipped its last batch."""
        return self._batch is not None and self.batches.close(self._batch[0])

    def return_what_was_lost(self) -> None:
        """Give back the samples of members that did not take part in the step's exchange."""
        made = next((joined.shares.formed for joined in self.joined if joined.exchanged), self.group.session.view)
        for batch in self.batches.take():
            if places := batch.of_members(lambda member: member not in made):
                batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
                if self._ledger is not None:
                    self._ledger.returned(batch.step, places)

    def _undo_step(self) -> None:
        """Give back all samples of a step whose only workers with samples were remote, and are lost with its result."""
        for batch in self.batches.take():
            places = batch.of_members(lambda member: True)
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
            if self._ledger is not None:
                self._ledger.returned(batch.step, places)

    def enough_left(self) -> bool:
        """Return whether a newcomer would still get a batch of this pass, as its script expects."""
        if not self.progress.has_loader:
            return self.group.session.elastic
        if self._batch is None or not self.group.session.elastic:
            return False
        run, step = self._batch
        items = run.loader.facts[1]
        # two batches for each worker, and a few more, because samples are dealt on while it enters
        return items is None or run.left.get(step.stream, RemainingSamples()).count(items) >= 2 * self.group.size + 2

    def samples(self) -> tuple[list[int], list[str]]:
        """Return positions and names of this worker's last samples."""
        if self._batch is None:
            return [], []
        run, step = self._batch
        places = run.loader.own_places(step)
        return places, [str(name) for name in run.loader.names(run.turn, places)]

    def share_loss(self, kind: str, loss: float) -> float:
        """Return the loss of all workers, for an optimizer that looks at it."""
        count = self._batch[1].counts[self._owner.place().rank] if self._batch is not None else 1
        return self._short_steps.share_loss(kind, loss, max(1, count))
