"""Rounds of local steps: which samples a round commits, and how a pass ends.

    step, step, …, step    each worker trains by itself; its batches are not committed yet
    round                  the members' batches are committed; those of a lost worker are dealt again
    overlapped round       the same when it lands, for the batches dealt before it left

So a sample counts exactly once, by round. A worker whose script skips batches may reach a round with more of them than
others; then workers exchange reports, and its extra batches are taken out of the pool (`train/batches.py`). Several
joins count together: where one ends a round, the others end theirs before the next batch.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from shoal.core.errors import DivergedError, PayloadError, UsageError
from shoal.core.events import DatagramsCounted, RoundsMade, ServerCounted
from shoal.data.loader_pass import LoaderPass
from shoal.membership.session import MembershipSession, slot_of
from shoal.membership.view import MembershipView
from shoal.sync.local.delayed import DelayedAverageSynchronizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.server.deadline_steps import DeadlineStepsSynchronizer
from shoal.sync.server.synchronizer import ServerStepsSynchronizer
from shoal.train.batches import DealtBatch, DealtBatches
from shoal.train.joined import JoinedModels
from shoal.train.members import read_count
from shoal.train.news import event_of
from shoal.train.numerics import IN_A_ROW, RemoteSuspects
from shoal.train.progress import StepProgress


class LocalRounds:
    """The rounds of one worker, over all its joins. Used by the training thread."""

    def __init__(
        self,
        session: MembershipSession,
        joined: Sequence[JoinedModels],
        batches: DealtBatches,
        progress: StepProgress,
        agreed: Callable[[], None],
    ) -> None:
        """`agreed` is called when all replicas have become equal."""
        self.session, self._joined, self.batches, self.progress = session, joined, batches, progress
        self._agreed = agreed
        self._committed = 0
        """Number of rounds, over all joins, when samples were last committed."""
        self._steps = 0
        self._begun: int | None = None
        """The last step that was offered to newcomers; None before this worker's first."""
        self._dropped = 0
        self._suspects = RemoteSuspects()
        self._givers: list[str] = []
        """Members that had samples of a step for which others had none, since all had the same state."""
        self.closed = False
        """Whether the run has ended, so that no further round is made."""

    @property
    def synchronizers(self) -> list[LocalStepsSynchronizer]:
        found = (joined.synchronizer for joined in self._joined)
        return [one for one in found if isinstance(one, LocalStepsSynchronizer)]

    @property
    def _rounds(self) -> int:
        return sum(one.totals.rounds for one in self.synchronizers)

    def step_began(self) -> None:
        """Note that an optimizer is about to step: all batches so far are used."""
        self._steps += 1
        self._begun = self.progress.step if self._begun is None else self._begun
        for batch in self.batches.batches:
            batch.run.trained = True

    @property
    def steps_made(self) -> int:
        """Steps of the first join since the last round."""
        return next((one.steps_made for one in self.synchronizers), 0)

    @property
    def arrivals(self) -> int:
        """Steps so far. A batch that was dealt before the last one is used."""
        return self._steps

    def share(self) -> float | None:
        """Return this worker's share of the samples since the last round; None if no loader has dealt any."""
        member, own, all_ = self.session.member, 0, 0
        for batch in self.batches.batches:
            if not batch.owner and member in batch.view:
                own, all_ = own + batch.step.counts[batch.view.rank(member)], all_ + sum(batch.step.counts)
        return own / all_ if all_ else None

    def leave(self, run: LoaderPass | None) -> None:
        """Leave a pass: drop batches that were not trained, then end the round. A collective call."""
        self.batches.drop_unused(run, self._steps)
        self.close()

    def close(self) -> None:
        """End the open rounds of all joins: a collective call of all workers that were dealt samples since."""
        if self.closed or not self.synchronizers:
            return
        if self.batches.batches or self.batches.travelling or any(one.is_round_open for one in self.synchronizers):
            for one in self.synchronizers:
                one.close_round()
        self._apply_pending()
        if self._rounds != self._committed:
            self._agree_on_steps()
        self.commit(self.progress.step + self.progress.stepped)
        for one in self.synchronizers:
            if not one.replicas_equal:  # an elastic round leaves them different
                one.settle()
                self._agreed()

    def _apply_pending(self) -> None:
        """Under delayed means: an evaluation follows, or another pass, so no gradient is left behind."""
        for joined in self._joined:
            if isinstance(joined.synchronizer, DelayedAverageSynchronizer):
                with joined.suppress_steps():
                    joined.synchronizer.apply_pending()

    def take_givers(self) -> list[str]:
        """Under delayed means, those whose script has done in every step what it does beside it (schedules): a worker
        without samples has made the others' step alone, and takes over their state. The same on all workers."""
        givers, self._givers = self._givers, []
        delayed = any(isinstance(one, DelayedAverageSynchronizer) for one in self.synchronizers)
        return [member for member in givers if member in self.session.committed_view] if delayed else []

    def _agree_on_steps(self) -> None:
        """Take the largest step number: a worker that skipped batches has made fewer steps in the pass's last round."""
        group, stepped = self.batches.group, self.progress.stepped
        said = [read_count(data) for data in group.gather(b"%d" % (self.progress.step + stepped), check=read_count)]
        members = zip(self.session.committed_view.members, said, strict=True)
        # a remote worker's word must not move the others' number
        self.progress.step = max(steps for member, steps in members if not self.session.remote(member)) - stepped

    def close_others(self) -> None:
        """End the rounds of all joins if one has ended its own in this step, so that all replicas are equal."""
        if self._rounds == self._committed:
            return
        for one in self.synchronizers:
            if one.is_round_open:
                one.close_round()
        self.commit(self.progress.step + self.progress.stepped)

    def commit(self, number: int) -> None:
        """After step `number`, commit the samples of a round that was made; those of lost members are dealt again."""
        synchronizers, rounds = self.synchronizers, self._rounds
        if not synchronizers or rounds == self._committed:
            return
        if any(one.is_unsettled if one.streams else one.is_round_open for one in synchronizers):
            return
        self._committed = rounds
        if not any(one.is_round_open for one in synchronizers):
            self._agreed()
        self._commit_streamed(number) if any(one.streams for one in synchronizers) else self._commit_all(number)
        self._warn(number)
        self._judge()
        self._tell_choices(number)

    def _tell_choices(self, number: int) -> None:
        """Worker 0 records what `local(auto)` has chosen: all choose the same."""
        for joined in self._joined:
            for decision in joined.exchange.observer.take_decisions():
                if slot_of(self.session.member) == 0:
                    self.progress.sink.emit(event_of(decision, number))

    def _commit_all(self, number: int) -> None:
        """Commit everything: the round of every join has ended."""
        views = [one.formed for one in self.synchronizers if one.formed is not None]
        for batch in self.batches.take():
            self._return(batch, partial(self._lost, views, batch.step_number))
        if self.batches.ledger is not None:
            self.batches.ledger.commit(number)

    def _commit_streamed(self, number: int) -> None:
        """Commit rounds that have landed; others may be under way."""
        landed = self.batches.take_landed()
        for batch in landed:
            view = batch.formed
            assert view is not None
            if 0 in batch.step.counts:
                counts = zip(batch.view.members, batch.step.counts, strict=False)
                self._givers = [member for member, count in counts if count]
            self._return(batch, lambda member, view=view: member not in view)  # type: ignore[misc]
        if self.batches.ledger is not None:
            self.batches.ledger.commit(number, of=[batch.step for batch in landed])

    def _return(self, batch: DealtBatch, lost: Callable[[str], bool]) -> None:
        """Give back the samples of lost members."""
        if places := batch.of_members(lost):
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])
            if self.batches.ledger is not None:
                self.batches.ledger.returned(batch.step, places)

    def land(self) -> None:
        """Wait until no round is under way, because something else is exchanged: a collective call."""
        for one in self.synchronizers:
            one.land()

    def check_joins(self) -> None:
        """Refuse overlapped rounds of several joins, because only one operation may be under way."""
        if len(self.synchronizers) > 1 and any(one.streams for one in self.synchronizers):
            raise UsageError(
                "join() was called twice, and rounds with overlap or fragments are those of one join; give all models "
                "and optimizers to one join(), or write local(…) without overlap and fragments"
            )
        if len(self.synchronizers) > 1 and any(isinstance(o, DeadlineStepsSynchronizer) for o in self.synchronizers):
            raise UsageError(
                "join() was called twice, and under deadline(…) a push may be late for one join and in time for the "
                "other; give all models and optimizers to one join()"
            )

    def _lost(self, views: Sequence[MembershipView], step: int, member: str) -> bool:
        """Return whether what `member` was dealt for the round's step number `step` counts for nobody."""
        gone = any(member not in view for view in views)
        return gone and step >= min(one.steps_kept(member) for one in self.synchronizers)

    def _warn(self, number: int) -> None:
        dropped = sum(one.totals.dropped for one in self.synchronizers)
        if dropped > self._dropped:
            self._dropped = dropped
            text = f"the round of step {number} counts without this worker: its parameters were not finite"
            self.progress.warn(f"{text}; it goes on with those of the others")

    def _judge(self) -> None:
        """Blame a round whose sum is not finite although this worker's part was.

        Honest workers leave out parts that are not finite, so a remote worker has not, or the sum overflows.
        """
        spoiled = max(one.totals.spoiled for one in self.synchronizers)
        if not spoiled or spoiled % IN_A_ROW or self.session.remote(self.session.member):
            return
        text = f"the mean of all workers was not finite in {spoiled} rounds in a row, and this worker's part was"
        if remote := [member for member in self.session.view.members if self.session.remote(member)]:
            self.session.distrust(self._suspects.choose(remote, self._rounds), PayloadError(text))
        else:
            raise DivergedError(f"{text}; lower the learning rate")

    def begin_steps(self, number: int) -> None:
        """Let newcomers enter, and plans be switched. Proposals name a step, so all steps of a round begin here, on all
        workers; without rounds, one step does."""
        view = self.session.view
        first = (self._begun or 0) + 1 if self.synchronizers else number
        for step in range(first, number + 1):
            self.session.begin(step)
            if self.session.view is not view and self.session.fresh:  # a newcomer begins with the next round
                break
        self._begun = number

    def told_servers(self) -> ServerCounted | None:
        """Return what this worker asked of the servers so far, for the record."""
        found = [one for one in self.synchronizers if isinstance(one, ServerStepsSynchronizer)]
        if not found:
            return None
        totals, servers = [one.server_totals for one in found], found[0].servers
        stale = sum((each.staleness for each in totals), Counter[int]())
        return ServerCounted(
            at=time.time(),
            step=self.progress.step,
            pushes=sum(each.pushes for each in totals),
            refused=sum(each.refused for each in totals),
            late=sum(each.late for each in totals),
            unused=sum(each.unused for each in totals),
            restarts=sum(each.restarts for each in totals),
            gained=sum(each.gained for each in totals),
            pulls=sum(each.pulls for each in totals),
            up=servers.sent,
            down=servers.got,
            staleness={str(behind): steps for behind, steps in stale.items()},
            waited=dict(sum((each.waited for each in totals), Counter[str]())),
            plain_up=sum(one.payloads.up for one in found),
            plain_down=sum(one.payloads.down for one in found),
        )

    def told_datagrams(self) -> DatagramsCounted | None:
        """Return what became of datagrams so far, for the record."""
        found = [one.datagram_counts() for one in self.synchronizers]
        told = [counts for counts in found if counts]
        if not told:
            return None
        sums = {name: sum(counts[name] for counts in told) for name in told[0]}
        return DatagramsCounted(at=time.time(), step=self.progress.step, **sums)

    def told(self) -> RoundsMade | None:
        """Return the totals of all rounds so far, for the record."""
        totals = [joined.round_totals for joined in self._joined]
        if not self.synchronizers and not any(each.rounds for each in totals):
            return None
        return RoundsMade(
            at=time.time(),
            step=self.progress.step,
            rounds=max(each.rounds for each in totals),
            steps=max(each.steps for each in totals),
            seconds=round(sum(each.seconds for each in totals), 6),
            sent=sum(each.sent for each in totals),
            wire=sum(each.wire for each in totals),
            dropped=sum(each.dropped for each in totals),
        )
