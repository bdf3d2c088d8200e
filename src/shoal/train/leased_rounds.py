"""Rounds of local steps whose samples are leased: a fast worker trains more batches of every round.

    open      a pass begins: this worker's queue of leases (`data/allocate/leased.py`)
    close     all tell each other what they have trained in the round ──> the round of averages, weighted by samples
              ──> what members of that round have trained is counted, on all workers alike; the next round begins
              ──> under servers, what lost members have pushed is counted too, as server 0 knows it
    closes    the worker's share of the round is trained, or (`end=fastest`) that of the fastest is
    leave     the script left the pass: all others end it too, because they could not agree without this worker
    switch    another plan, between two rounds: passes are leased from here on, or no more, or by other terms

What a worker has trained is told before the averages are made. So whoever is lost before them does not count, and its
samples are leased again; whoever is lost after them does count, and all know with what.

Steps are counted alike by all: a round takes as many as the one of the run's own workers that made most. A scheduler
that the script steps with every batch runs ahead on fast workers; one that it steps with every epoch does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from shoal.core.errors import PayloadError, UsageError
from shoal.data.allocate.leased import LeaseQueue, LeaseTerms
from shoal.data.loader_pass import LoaderPass
from shoal.data.remaining import Range, Ranges, RemainingSamples, joined
from shoal.data.source.base import LoaderStep
from shoal.groups.base import WorkerGroup
from shoal.membership.lease_book import count, subtract
from shoal.sync.trained import MOST_POSITIONS, PassNumbers, TrainedSamples, check_trained, count_samples
from shoal.train.ledger import LedgerWriter
from shoal.train.local_rounds import LocalRounds

PLAN_STRIDE = 1 << 32
"""In the number of a leased pass: from those of one plan to those of the next."""
UNLEASED = (
    "samples=leased: this loader has no map-style dataset of known length with a batch_size, so workers "
    "cannot take more or less of it; leave samples=leased out of the plan"
)


class RoundReport(msgspec.Struct, frozen=True):
    """What a worker says before the averages of a round."""

    steps: int
    leaves: bool
    trained: list[TrainedSamples]

    @property
    def samples(self) -> int:
        return count_samples(self.trained)


class LeasedRounds:
    """Of one worker. Used by the training thread."""

    def __init__(self, group: WorkerGroup, rounds: LocalRounds) -> None:
        self._group, self._rounds, self._progress = group, rounds, rounds.progress
        self._passes: list[LoaderPass] = []
        """All that train, leased or not."""
        self._open: dict[PassNumbers, LoaderPass] = {}
        self._delivered: list[tuple[LoaderPass, Ranges, int]] = []
        """Since the last round, and how many steps this worker had made when it got each."""
        self._began = 0
        """The step at which the round began."""
        self._share: float | None = None

    def open(self, run: LoaderPass) -> None:
        """A pass for training begins. Lease its samples, if the plan says so."""
        self._passes.append(run)
        self._lease(run)

    def begin_plan(self) -> None:
        """All joins train by another plan, between two rounds: what is left of every pass is dealt as that says."""
        self._open.clear()
        self._delivered = []
        for run in self._passes:
            if run.leases is not None:
                run.leases.forget()
                run.leases, run.changed = None, True
            if not run.ended:
                self._lease(run)
                run.changed = run.changed or run.leases is not None

    def _lease(self, run: LoaderPass) -> None:
        leased = next((one for one in self._rounds.synchronizers if one.leased), None)
        if leased is None:
            return
        session, items, batch = self._group.session, run.loader.facts[1], run.loader.lease_batch
        if session.leases is None:
            raise UsageError(
                "samples=leased: the members of this run are fixed and have no coordinator to lease from; start it "
                "with shoal run and two workers or more, without --trusted, or leave samples=leased out of the plan"
            )
        if items is None or batch is None:
            raise UsageError(UNLEASED)
        # the first open pass begins the round, and later ones join it
        if not self._open:
            self._began = self._progress.step + self._progress.stepped
        # by the number of the plan too: the coordinator keeps the terms of a pass as long as it knows its key
        key = (run.loader.facts[0], run.turn.epoch, run.turn.number + PLAN_STRIDE * session.view.switches)
        drop_last, fastest = run.loader.facts[2] > 0, leased.ends_with_fastest
        terms = LeaseTerms(key, items, batch, leased.steps, drop_last, fastest)
        left = run.left.get(0, RemainingSamples())
        run.leases = LeaseQueue(session.leases, session.member, terms, self._began, left, self._group.seconds)
        self._open[key] = run

    def delivered(self, run: LoaderPass, step: LoaderStep) -> None:
        """The script gets a batch that was leased."""
        self._delivered.append((run, step.ranges, self._rounds.arrivals))

    def leased_from(self, place: int) -> list[TrainedSamples]:
        """What the script was given since the last round, but for the first `place` batches."""
        return [TrainedSamples(_key(run), list(ranges)) for run, ranges, _ in self._delivered[place:]]

    def step_began(self) -> None:
        for run, _, _ in self._delivered:
            run.trained = True

    def share(self) -> float | None:
        """This worker's share of the samples of the round that is being closed; None where nothing is leased."""
        return self._share

    def closes(self, run: LoaderPass, step: LoaderStep | None) -> bool:
        """Whether the round has to be closed before the script gets this step, or finds that there is none."""
        queue = run.leases
        if queue is None or run.ended or (step is not None and step.lease is None):
            return False
        return queue.closes(None if step is None else step.lease)

    def close(self, ledger: LedgerWriter | None, leaving: LoaderPass | None = None) -> int:
        """End the round; returns the number of steps made by then. A collective call."""
        for one in self._rounds.synchronizers:  # who still trains must not wait for a worker that waits here
            one.leave_round()
        for run in self._open.values():
            if run.leases is not None:
                run.leases.finish()
        own = self._report(leaving)
        said = [read_report(data) for data in self._group.gather(msgspec.json.encode(own), check=self._check)]
        session = self._group.session
        reports = dict(zip(session.committed_view.members, said, strict=True))
        remote = [member for member in reports if session.remote(member)]  # now: they may be lost before the averages
        # asked for while the synchronizers close their rounds below, which weigh by samples
        self._share = own.samples / max(1, sum(report.samples for report in said))
        for one in self._rounds.synchronizers:
            one.close_round()
        self._share = None
        views = [one.formed for one in self._rounds.synchronizers if one.formed is not None]
        counted = [member for member in reports if all(member in view for view in views)]
        self._count_all({member: reports[member] for member in counted}, remote, ledger)
        self._count_lost(ledger)
        trusted = [report for member, report in reports.items() if member not in remote]
        # at least one, so that no two rounds end at the same step
        number = self._began + max([1, *(report.steps for report in trusted)])
        # a step that is made and not closed yet adds one when it closes
        self._progress.step = number - self._progress.stepped
        self._rounds.commit(number)
        ends = any(report.leaves for report in trusted)
        for member in remote:
            if reports[member].leaves and not ends:
                self._accuse(member, "it left a pass that the run's own workers go on with")
        self._next_round(number, ends)
        return number

    def _report(self, leaving: LoaderPass | None) -> RoundReport:
        trained: dict[PassNumbers, list[Range]] = {}
        unused = {place for one in self._rounds.synchronizers for place in one.unused_batches}
        for place, (run, ranges, arrivals) in enumerate(self._delivered):
            stepped = run is not leaving or arrivals < self._rounds.arrivals
            if stepped and place not in unused:  # else it is in nobody's values, and is leased again
                trained.setdefault(_key(run), []).extend(ranges)
        self._delivered = []
        steps = self._progress.step + self._progress.stepped - self._began
        told = _joined(TrainedSamples(key, found) for key, found in trained.items())
        return RoundReport(max(0, steps), leaving is not None, told)

    def _check(self, data: bytes) -> None:
        """PayloadError for what cannot have been leased to one worker in a round."""
        self._check_leased(read_report(data).trained)

    def _check_leased(self, found: Iterable[TrainedSamples]) -> None:
        for trained in found:
            run = self._open.get(trained.key)
            if run is None or run.leases is None:
                continue
            terms = run.leases.terms
            # twice a round: a coordinator that is started again leases it anew
            most = 2 * terms.steps * len(self._group.session.view) * terms.batch
            apart = terms.items - count(subtract([(0, terms.items)], trained.ranges))
            if count(trained.ranges) > most or count(trained.ranges) != apart:
                raise PayloadError(
                    f"{count(trained.ranges)} samples in one round, {apart} of them in the pass; at most {most} are"
                )

    def _count_all(
        self, reports: Mapping[str, RoundReport], remote: Sequence[str], ledger: LedgerWriter | None
    ) -> None:
        """The run's own workers first: a remote one that says it trained the same samples as they did is not heard."""
        for member in [member for member in reports if member not in remote]:
            self._count(reports[member].trained, ledger)
        left = {key: _whole_pool(run) for key, run in self._open.items()}
        for member in filter(reports.__contains__, remote):
            if any(subtract(each.ranges, left.get(each.key, each.ranges)) for each in reports[member].trained):
                self._accuse(member, "it says it trained samples that others have trained")
            else:
                self._count(reports[member].trained, ledger)

    def _accuse(self, member: str, what: str) -> None:
        session = self._group.session
        if member != session.member and session.remote(member):
            session.distrust(member, PayloadError(f"{member}: {what}"))

    def _count(self, trained: Iterable[TrainedSamples], ledger: LedgerWriter | None) -> None:
        for each in trained:
            run = self._open.get(each.key)
            # two remote workers may say the same, and nobody knows which one lies
            ranges = _common(each.ranges, _whole_pool(run)) if run is not None else []
            if run is not None and ranges:
                run.count_leased(ranges)
                run.trained = True
                if ledger is not None:
                    ledger.dealt(run, LoaderStep((count(ranges),), None, tuple(ranges)))

    def _count_lost(self, ledger: LedgerWriter | None) -> None:
        """Under servers: steps that lost members have pushed in every join are in the values of all."""
        synchronizers = self._rounds.synchronizers
        for member in sorted({member for one in synchronizers for member in one.samples_kept}):
            # only what reached the servers in every join counts: the rest is trained again by all joins
            fewest = min(synchronizers, key=lambda one: one.steps_kept(member))
            trained = _joined(fewest.samples_kept.get(member, ()))
            with suppress(PayloadError):  # a remote worker may have lied: these samples are leased again
                self._check_leased(trained)
                self._count(trained, ledger)

    def _next_round(self, number: int, ends: bool) -> None:
        self._began = number
        for run in self._open.values():
            assert run.leases is not None
            run.leases.close(number, run.left.get(0, RemainingSamples()))
            run.ended = run.ended or ends

    def leave(self, run: LoaderPass, ledger: LedgerWriter | None) -> int | None:
        """A pass is over, or left by the script; returns the number of steps if that has closed a round."""
        self._passes = [one for one in self._passes if one is not run]
        if run.leases is None:
            return None
        # left with samples over: the others must end the pass too, as they cannot agree without this worker
        early = run.leases.remains and not run.ended and not self._rounds.closed
        key = _key(run)
        number = self.close(ledger, leaving=run) if early else None
        if run.leases is not None:
            run.leases.forget()
        self._open.pop(key, None)
        return number


def _whole_pool(run: LoaderPass) -> list[Range]:
    """What nobody has trained of a pass."""
    left = run.left.get(0, RemainingSamples())
    items = run.leases.terms.items if run.leases is not None else left.position
    return [*left.returned, (left.position, max(left.position, items))]


def _common(ranges: Sequence[Range], pool: Sequence[Range]) -> list[Range]:
    return subtract(ranges, subtract(ranges, pool))


def read_report(data: bytes) -> RoundReport:
    """What a worker reports; PayloadError for what no loader deals."""
    report = msgspec.json.decode(data, type=RoundReport)
    check_trained(report.trained)
    if not 0 <= report.steps <= MOST_POSITIONS:
        raise PayloadError(f"{report.steps} steps in one round; at most {MOST_POSITIONS} are believed")
    return report


def _joined(trained: Iterable[TrainedSamples]) -> list[TrainedSamples]:
    """One of each pass, with as few ranges as there can be."""
    found: dict[PassNumbers, list[Range]] = {}
    for each in trained:
        found.setdefault(each.key, []).extend(each.ranges)
    return [TrainedSamples(key, list(joined(sorted(ranges)))) for key, ranges in found.items()]


def _key(run: LoaderPass) -> PassNumbers:
    """Of a pass that is leased."""
    assert run.leases is not None
    return run.leases.terms.key
