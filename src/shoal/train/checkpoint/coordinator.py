"""Workers synchronize now and then at the end of a step: to compare replicas, take a checkpoint, or stop together."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from shoal.core.clock import now
from shoal.core.errors import RunEnded
from shoal.core.events import CheckpointSaved, SharesChanged, WarningRaised
from shoal.core.journal import EventJournal
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import WorkerState
from shoal.train.balance import ShareBalancer
from shoal.train.checkpoint.interval import CheckpointInterval, guess
from shoal.train.checkpoint.manifest import FORMAT, CheckpointManifest, rows_name
from shoal.train.checkpoint.snapshot import SnapshotBuffer, TrainingPosition, common, own
from shoal.train.checkpoint.sync_schedule import MOST_STEPS, SyncSchedule, steps_between
from shoal.train.checkpoint.sync_vote import SyncVote, check_equal, check_same, check_vote
from shoal.train.checkpoint.tables import has_tables, write_blocks
from shoal.train.checkpoint.writer import CheckpointWriter
from shoal.train.fingerprint import fingerprint
from shoal.train.joined import JoinedModels
from shoal.train.ledger import LedgerWriter

GRACE = 8.0
"""Seconds a run that was asked to stop may take to finish its last checkpoint."""


class CheckpointCoordinator:
    """One worker's part in checkpoints and comparisons."""

    def __init__(
        self,
        group: WorkerGroup,
        directory: Path,
        base: CheckpointManifest,
        interval: CheckpointInterval,
        sink: EventJournal,
        ledger: LedgerWriter | None,
        joined: Sequence[JoinedModels],
        where: Callable[[list[int]], TrainingPosition],
        balancer: ShareBalancer,
    ) -> None:
        self.group, self.interval, self.sink, self.ledger, self.joined = group, interval, sink, ledger, joined
        self._base, self._where, self.balancer = base, where, balancer
        self._writer = CheckpointWriter(directory, group.rank, ledger.sync if ledger is not None else lambda: None)
        self._camera = SnapshotBuffer()
        self._next = self._compared = self._ended = base.step
        self._met = (base.step, now())
        self._sync_seconds = 0.0
        self._saved, self._due = base.step, 0.0
        self._cost: float | None = None
        self._paused = 0.0
        self._warned = False
        self._flush = False
        """Whether the event of the checkpoint's own step is still to be handed over."""

    def set_plan(self, plan: str) -> None:
        """Later checkpoints are of this plan."""
        self._base = msgspec.structs.replace(self._base, plan=plan)

    def catch_up(self, step: int, samples: int) -> None:
        """Before an epoch's end: a script that left its loop after `step` has asked for no further batch, and others,
        who had none to leave at, have been here already."""
        if self._ended < step:
            self.step_ended(step, samples)

    def step_ended(self, step: int, samples: int) -> None:
        """All workers come here after every step with the same number."""
        self._ended = step
        if self._flush:
            self._flush = False
            self.sink.flush()
        if step >= self._next and self.joined:
            self.synchronize(step, samples)

    def synchronize(self, step: int, samples: int, *, epoch_ended: bool = False) -> None:
        began = now()
        # a comparison reads all parameters, so it is not made every time
        compare = epoch_ended or step - self._compared >= MOST_STEPS
        vote = SyncVote(step, epoch_ended, fingerprint(self.joined) if compare else 0, samples)
        vote.slot, vote.rate = self.group.slot, self.balancer.take_rate()
        if self.group.rank == 0:
            # one worker's clock decides for all, or some would save and others not
            vote.save, vote.stop, vote.next = self._due_now(step), self.group.board.stopping, self._next_sync(step)
        self.group.board.enter_sync(self.group.slot)
        votes = [
            msgspec.json.decode(data, type=SyncVote)
            for data in self.group.gather(msgspec.json.encode(vote), check=partial(check_vote, vote))
        ]
        self.group.board.note(self.group.slot, WorkerState.computing)
        check_same(votes)
        # the shortest so far: a longer one includes the wait for a slower worker
        self._sync_seconds = min(self._sync_seconds or 1.0, now() - began)
        if compare:
            self._compared = step
            check_equal([(vote.slot, vote.fingerprint) for vote in votes], step)
        self._balance(votes, step)
        self._tell()
        first, self._next = votes[0], votes[0].next
        if first.stop and not self.interval.off:
            # while one is written no other begins, and the last one would be left out
            self._writer.wait(GRACE)
        if (first.save or (first.stop and step > self._saved)) and not self._writer.busy and not self.interval.off:
            self._save(step, [vote.samples for vote in votes])
        if (first.save or first.stop) and has_tables(self.joined):
            self.group.gather(b"")  # nobody pushes before all have read their part
        if first.stop:
            self.close()
            if self.group.remote:
                raise RunEnded("the run was stopped where it began", well=False)
            raise KeyboardInterrupt  # as Ctrl-C does, so that the script ends in the way it knows

    def _balance(self, votes: Sequence[SyncVote], step: int) -> None:
        """Deal the next steps by what everybody said of its speed; worker 0 records a change."""
        members = self.group.session.committed_view.members
        rates = [vote.rate for vote in votes]
        changed = self.balancer.update(members, [vote.slot for vote in votes], rates)
        if changed and self.group.rank == 0:
            shares = self.balancer.shares(members) or (1,) * len(members)
            by_slot = {str(vote.slot): share / sum(shares) for vote, share in zip(votes, shares, strict=True)}
            measured = {str(vote.slot): round(vote.rate, 1) for vote in votes if vote.rate}
            self.sink.emit(SharesChanged(at=time.time(), step=step, shares=by_slot, rates=measured))

    @property
    def schedule(self) -> SyncSchedule:
        """For a newcomer."""
        return SyncSchedule(
            self._next,
            self._compared,
            self._saved,
            self.group.board.count_syncs(self.group.slot),
            self.balancer.of_member,
        )

    def follow(self, schedule: SyncSchedule, step: int) -> None:
        """A newcomer begins after `step`."""
        self._next, self._compared, self._saved, syncs, shares = msgspec.structs.astuple(schedule)
        self._met, self._ended = (self._next, now()), step
        self.balancer.of_member = shares
        self.group.board.set_syncs(self.group.slot, syncs)

    def _next_sync(self, step: int) -> int:
        """As far away as the last steps and the shortest synchronization say."""
        before, at = self._met
        self._met = (step, now())
        seconds = (self._met[1] - at) / max(1, step - before)
        following = step + steps_between(seconds, self._sync_seconds)
        # all must synchronize at the very step at which a checkpoint is due
        return min(following, self._saved + self.interval.steps) if self.interval.steps else following

    def is_due(self, step: int) -> bool:
        """Whether worker 0 would take a checkpoint now, if all replicas were equal."""
        return self.group.rank == 0 and self._due_now(step)

    def _due_now(self, step: int) -> bool:
        if self.interval.off or step == self._saved or self._writer.busy:
            return False
        if self.interval.steps is not None:
            return step - self._saved >= self.interval.steps
        if not self._due:
            self._due = now() + self._wait()
        return now() >= self._due

    def _wait(self) -> float:
        if self._cost is None:
            tensors, _ = common(self.joined)
            self._cost = guess(sum(t.numel() * t.element_size() for t in tensors.values()))
        return self.interval.wait(self._cost)

    def _save(self, step: int, samples: list[int]) -> None:
        if self.group.remote:  # the run's folder is on another machine
            self._saved = step
            return
        began, home = now(), self.group.size - self.group.remote_count
        rows = None
        if any(one.members.tables for one in self.joined):
            content = write_blocks(self.joined, self.group.rank, home)
            rows = self._writer.write_rows(step, rows_name(self.group.rank), content)
        if self.group.rank == 0:
            for one in self.joined:
                # copies of what lies on servers are as old as their last use
                one.refresh_served()
        tensors, texts = own(self.joined)
        written = self.ledger is None or self.ledger.saved(step)
        if self.group.rank == 0:
            shared, more = common(self.joined)
            where = self._where(seen_from_home(samples, self.group.remote_count))
            tensors, texts = shared | tensors, more | texts | {"where": msgspec.json.encode(where).decode()}
            if self.ledger is not None and not written:
                self._complain(step, f"the ledger cannot be written: {self.ledger.error}")
                return
            epoch = where.epoch
        else:
            epoch = 0
        manifest = msgspec.structs.replace(self._base, step=step, epoch=epoch, samples=sum(samples), workers=home)
        # ranks close up when a worker is lost
        self._writer.rank = self.group.rank
        self._writer.start(manifest, self._camera.take(tensors), texts, rows)
        self.sink.flush()
        self._flush = True
        self._saved, self._due, self._paused = step, 0.0, now() - began

    def _tell(self) -> None:
        """What became of the last checkpoint; worker 0 speaks for all."""
        written, self._writer.last = self._writer.last, None
        if written is None or self.group.rank != 0:
            return
        if written.error:
            self._complain(written.step, written.error)
            return
        self._warned = False
        # what the writing thread waits for the disk costs the training nothing
        self._cost = self._paused + written.work
        self.sink.emit(
            CheckpointSaved(
                at=time.time(),
                step=written.step,
                size=written.size,
                paused=self._paused,
                seconds=written.seconds,
                work=written.work,
            )
        )

    def _complain(self, step: int, reason: str) -> None:
        """Once, until one succeeds again."""
        if not self._warned:
            text = f"the checkpoint of step {step} failed: {reason}; training goes on, and the next one is tried"
            self.sink.emit(WarningRaised(at=time.time(), text=text))
            sys.stderr.write(f"shoal: {text}\n")
        self._warned = True

    def close(self) -> None:
        """Let what was begun come to its end."""
        self._writer.wait(GRACE)
        self._tell()


def seen_from_home(samples: Sequence[int], remote: int) -> list[int]:
    """Samples of each worker whose state is kept; worker 0 carries those of remote workers, which come last."""
    first, *rest = samples[: len(samples) - remote]
    return [first + sum(samples[len(samples) - remote :]), *rest]


def base(run: str, plan: str, seed: int, workers: int, step: int) -> CheckpointManifest:
    """What all manifests of a run share; `step`: where it begins."""
    return CheckpointManifest(
        format=FORMAT, run=run, step=step, epoch=0, samples=0, workers=workers, plan=plan, seed=seed, shards=[]
    )
