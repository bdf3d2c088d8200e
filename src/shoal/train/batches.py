"""Batches since the last step: which samples each worker was dealt, and which of them its script skipped.

A script may skip a batch on one worker only (`if not loss.isfinite(): continue`). That worker is then one batch ahead
of the others, and every exchange shows it (`sync/batch_tag.py`). Its next batch counts in the others' step, which is
right because no parameters changed in between. Then all workers exchange reports and derive the same list:

    worker 0:  n  used                        ─┐  n: worker 1's samples are recorded as skipped
    worker 1:  n  skipped, n+1  used          ─┴─ n+1: worker 1's are used; those of the others are dealt again

A batch counts as skipped if its loader is asked for the next one before any gradient has been computed. Where all
workers do the same (look ahead, or skip the same batch), no agreement is needed and the batch counts as used.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.core.errors import PayloadError
from shoal.data.loader_pass import LoaderPass
from shoal.data.remaining import Range, RemainingSamples, joined
from shoal.data.source.base import LoaderStep
from shoal.groups.base import WorkerGroup
from shoal.membership.view import MembershipView
from shoal.sync.batch_tag import BatchTag
from shoal.train.batch_report import MOST_POSITIONS, BatchReport, Key, ReportedBatch, read_report
from shoal.train.ledger import LedgerWriter


@dataclass
class DealtBatch:
    """One batch of all workers, or the part that one worker was dealt ahead of the others."""

    run: LoaderPass
    step: LoaderStep
    view: MembershipView
    arrivals: int
    """Gradients this worker had computed when it got the batch."""
    closed: bool = False
    """Whether its loader has been asked for the next one."""
    used: bool = True
    settled: bool = False
    """Whether all workers have agreed if it was used."""
    owner: str = ""
    """The only member it was dealt to; empty: all members of the view."""
    skipped: set[int] = field(default_factory=set)
    formed: MembershipView | None = None
    """The view that completed its round; None before that."""
    step_number: int = 0
    """Under `local(…)` and servers: steps of the round made before it was dealt."""

    def of_members(self, lost: Callable[[str], bool]) -> list[int]:
        """Return the positions in it of members for whom `lost` holds."""
        if self.owner:
            places = _places(self.step.ranges) if lost(self.owner) else []
        else:
            ranks = [rank for rank, member in enumerate(self.view.members) if lost(member)]
            places = [place for rank in ranks for place in self.step.positions_of(rank)]
        return [place for place in places if place not in self.skipped]


class DealtBatches:
    """The batches of one worker; equal on all workers except for those dealt since they last agreed."""

    ledger: LedgerWriter | None = None

    def __init__(
        self,
        group: WorkerGroup,
        arrivals: Callable[[], int],
        uncount: Callable[[int], None],
        steps_made: Callable[[], int] = lambda: 0,
    ) -> None:
        """`arrivals`: gradients this worker has computed so far; `uncount` gets the number of samples it has skipped;
        `steps_made`: since the last round."""
        self.group, self._arrivals, self._uncount, self._steps_made = group, arrivals, uncount, steps_made
        self.batches: list[DealtBatch] = []
        self.travelling: list[DealtBatch] = []
        """Batches of rounds that have left and are not committed."""
        self.waits = False
        """Whether this worker takes part in exchanges without samples of its own."""
        self.ends = False
        """Whether the pass has no further batch, so no gradient of the last one can follow."""

    def add(self, run: LoaderPass, step: LoaderStep) -> None:
        view, made = self.group.session.committed_view, self._steps_made()
        self.batches.append(DealtBatch(run, step, view, self._arrivals(), step_number=made))
        if self.ledger is not None:
            self.ledger.dealt(run, step)

    def close(self, run: LoaderPass) -> bool:
        """Note that the loader is asked for the next batch. Return whether the last one was skipped."""
        last = next((batch for batch in reversed(self.batches) if batch.run is run and not batch.owner), None)
        if last is None or last.settled:
            return False
        if not last.closed and last.step.counts[last.view.rank(self.group.session.member)]:
            last.used = self._arrivals() > last.arrivals  # a gradient came while it was the script's batch
        last.closed = True
        return not last.used

    def drop_unused(self, run: LoaderPass | None, arrivals: int) -> None:
        """Drop what was dealt since the last step (`arrivals`), because a pass, or all, is left under `local(…)`."""
        dropped = [b for b in self.batches if b.arrivals >= arrivals and (run is None or b.run is run)]
        self.batches = [b for b in self.batches if all(b is not other for other in dropped)]
        if self.ledger is not None:
            self.ledger.drop([batch.step for batch in dropped])

    def forget(self, run: LoaderPass | None) -> None:
        """Drop the batches of a pass that is over."""
        self.batches = [batch for batch in self.batches if run is not None and batch.run is not run]

    def take(self) -> list[DealtBatch]:
        """Return all batches and begin anew: a step has consumed them."""
        batches, self.batches = self.batches, []
        return batches

    def launch(self) -> None:
        """Set the batches so far aside: they belong to a round that has left and lands later."""
        self.travelling += self.take()

    def land(self, view: MembershipView) -> None:
        """Note that the rounds under way were completed by the members of `view`."""
        for batch in self.travelling:
            batch.formed = batch.formed or view

    def take_landed(self) -> list[DealtBatch]:
        """Return the batches of rounds that have landed."""
        landed = [batch for batch in self.travelling if batch.formed is not None]
        self.travelling = [batch for batch in self.travelling if batch.formed is None]
        return landed

    @property
    def tag(self) -> BatchTag:
        return BatchTag(any(not batch.used and not batch.settled for batch in self.batches), len(self.batches))

    def agree(self) -> tuple[set[str], bool]:
        """Derive the same list on all workers after an exchange whose tags differed; a collective call.

        Return the members that took part without samples, and whether all did.
        """
        if not self.travelling:
            return self._agree()
        later, self.batches = self.batches, self.travelling  # the exchange was that of a round under way
        try:
            return self._agree()
        finally:
            self.batches, self.travelling = later, self.batches

    def _agree(self) -> tuple[set[str], bool]:
        said = self.group.gather(msgspec.json.encode(self._report()), check=self._check)
        reports = [read_report(data) for data in said]
        members = self.group.session.committed_view.members
        remote = {member for member in members if self.group.session.remote(member)}
        waiting = {member for member, report in zip(members, reports, strict=True) if report.waits}
        nobody = len(waiting) == len(members)
        if len({tuple(batch.used for batch in report.batches) for report in reports}) > 1 or (nobody and self.ends):
            self._settle(members, reports, remote)
        for batch in self.batches:
            batch.settled = True
        return waiting, nobody

    def _report(self) -> BatchReport:
        member = self.group.session.member
        batches = []
        for batch in self.batches:
            places = batch.of_members(lambda one: one == member)
            count = len(places) if batch.owner else batch.step.counts[batch.view.rank(member)]
            ranges = list(joined((place, place + 1) for place in places))
            batches.append(ReportedBatch(_key(batch.run), batch.step.stream, ranges, count, batch.used))
        return BatchReport(self.waits, batches)

    def _check(self, data: bytes) -> None:
        """Raise PayloadError for positions that do not exist in their pass."""
        report = read_report(data)
        for batch in self.batches:
            items = batch.run.loader.facts[1]
            # the length of a stream is not known; what lies far beyond this worker's place is not believed
            most = batch.run.left.get(batch.step.stream, RemainingSamples()).position + MOST_POSITIONS
            for told in report.batches:
                if told.key != _key(batch.run) or (items is None and told.stream != batch.step.stream):
                    continue
                end = max((end for _, end in told.ranges), default=0)
                if end > (most if items is None else items) or (items is not None and told.stream):
                    raise PayloadError(f"position {end - 1} of stream {told.stream}, which the pass does not have")

    def _settle(self, members: Sequence[str], reports: Sequence[BatchReport], remote: Collection[str]) -> None:
        # batches that every worker was dealt; what some were dealt beyond that they were dealt alone
        common = min(len(report.batches) for report in reports)
        ahead = [
            (member, batch)
            for member, report in zip(members, reports, strict=True)
            for batch in report.batches[common:]
        ]
        ahead = self._believed(ahead, remote, self.batches[common:])
        for member, report in zip(members, reports, strict=True):
            for mine, told in zip(self.batches[:common], report.batches, strict=False):
                if not told.used:
                    self._skip(mine, member, told)
        runs = {_key(batch.run): batch.run for batch in self.batches}
        own = self.batches[common:]
        for batch in own:
            kept = _all(told for _, told in ahead if (told.key, told.stream) == (_key(batch.run), batch.step.stream))
            back = [place for place in _places(batch.step.ranges) if place not in kept]
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in back])
            if self.ledger is not None:
                self.ledger.returned(batch.step, _places(batch.step.ranges))  # those that count follow
        self.batches = self.batches[:common]
        for member, told in ahead:
            if told.key in runs and told.ranges:
                self._take_ahead(member, told, runs[told.key], _all_dealt(own, told))

    def _believed(
        self, ahead: Iterable[tuple[str, ReportedBatch]], remote: Collection[str], own: Sequence[DealtBatch]
    ) -> list[tuple[str, ReportedBatch]]:
        """Drop what a remote worker cannot have been dealt: samples of others, and samples dealt before."""
        left = {_key(batch.run): batch.run.left for batch in self.batches}
        taken: dict[tuple[Key, int], set[int]] = {}
        found = []
        # the run's own workers first: what they were dealt, no remote worker can have been
        for member, told in sorted(ahead, key=lambda one: one[0] in remote):
            others = taken.setdefault((told.key, told.stream), set())
            places = _places(told.ranges)
            if member in remote and told.key in left:
                rest = left[told.key].get(told.stream, RemainingSamples())
                dealt = _all_dealt(own, told)
                places = [p for p in places if p not in others and (p in rest or p in dealt)]
                if len(places) < len(_places(told.ranges)):
                    ranges = list(joined((place, place + 1) for place in sorted(places)))
                    told = msgspec.structs.replace(told, ranges=ranges, samples=len(places))
            others.update(places)
            found.append((member, told))
        return found

    def _skip(self, batch: DealtBatch, member: str, told: ReportedBatch) -> None:
        own = set(batch.of_members(lambda one: one == member))  # a member may only report its own samples
        places = [place for place in _places(told.ranges) if place in own]
        batch.skipped.update(places)
        if self.ledger is not None:
            self.ledger.skipped(batch.step, places)
        if places and member == self.group.session.member:
            self._uncount(told.samples)

    def _take_ahead(self, member: str, told: ReportedBatch, run: LoaderPass, known: set[int]) -> None:
        """Add a batch that one worker was dealt before the others."""
        step = LoaderStep((told.samples,), None, tuple(told.ranges), told.stream)
        run.take_out(told.stream, [(p, p + 1) for p in _places(told.ranges) if p not in known])
        batch = DealtBatch(run, step, self.group.session.committed_view, 0, used=told.used, owner=member)
        self.batches.append(batch)
        if self.ledger is not None:
            self.ledger.dealt(run, step)
        if not told.used:
            self._skip(batch, member, told)


def _key(run: LoaderPass) -> Key:
    return run.loader.facts[0], run.turn.epoch, run.turn.number


def _places(ranges: Iterable[Range]) -> list[int]:
    return [place for begin, end in ranges for place in range(begin, end)]


def _all_dealt(batches: Iterable[DealtBatch], told: ReportedBatch) -> set[int]:
    """Return the positions of all workers in batches of the same pass and stream."""
    same = (batch for batch in batches if (_key(batch.run), batch.step.stream) == (told.key, told.stream))
    return {place for batch in same for place in _places(batch.step.ranges)}


def _all(batches: Iterable[ReportedBatch]) -> set[int]:
    return {place for batch in batches for place in _places(batch.ranges)}
