"""What a remote worker reports of its samples is believed within what it can have been given, leased or dealt."""

from types import SimpleNamespace

import msgspec
import pytest

from shoal.core.errors import PayloadError
from shoal.data.allocate.leased import LeaseQueue, LeaseTerms
from shoal.data.loader_pass import LoaderPass
from shoal.data.remaining import RemainingSamples
from shoal.data.source.base import LoaderStep
from shoal.data.turn import PassKey
from shoal.membership.view import MembershipView
from shoal.train.batch_report import BatchReport, ReportedBatch
from shoal.train.batches import DealtBatches
from shoal.train.leased_rounds import LeasedRounds, RoundReport, TrainedSamples

KEY, OTHERS = (0, 0, 0), ("b", "g1", "g2")


class GroupOfFour:
    """The worker `a`, with another of the run's own, `b`, and remote ones, `g1` and `g2`; as group and as session."""

    def __init__(self) -> None:
        self.member, self.seconds, self.session = "a", 1.0, self
        self.view = self.committed_view = MembershipView(1, ("a", *OTHERS))
        self.said: list[bytes] = []
        self.refused: list[str] = []
        self.accused: list[str] = []
        loader = SimpleNamespace(facts=(0, 100, 0), lease_batch=4)
        self.run = LoaderPass(loader, PassKey(0, 0, 0))  # type: ignore[arg-type]

    def remote(self, member: str) -> bool:
        return member[0] == "g"

    def distrust(self, member: str, error: PayloadError) -> None:
        self.accused.append(member)

    def gather(self, data: bytes, check) -> list[bytes]:  # type: ignore[no-untyped-def]
        """As over links: without a remote worker whose report is refused."""
        heard = [data]
        for member, said in zip(OTHERS, self.said, strict=True):
            try:
                if self.remote(member):
                    check(said)
                heard.append(said)
            except PayloadError:
                self.refused.append(member)
        members = [each for each in self.view.members if each not in self.refused]
        self.committed_view = MembershipView(2, tuple(members))
        return heard

    @property
    def left(self) -> RemainingSamples:
        return self.run.left.get(0, RemainingSamples())


class LeasedRound(GroupOfFour):
    def __init__(self) -> None:
        super().__init__()
        self.progress = SimpleNamespace(step=3, stepped=0)
        self.rounds = SimpleNamespace(
            progress=self.progress, synchronizers=[], arrivals=0, closed=False, commit=lambda number: None
        )
        self.leases = SimpleNamespace(say=lambda request: None, forget=lambda loader: None)
        self.leased = LeasedRounds(self, self.rounds)  # type: ignore[arg-type]
        terms = LeaseTerms(KEY, items=100, batch=4, steps=2)
        self.run.leases = LeaseQueue(self.leases, "a", terms, 0, RemainingSamples(), 1.0)  # type: ignore[arg-type]
        self.leased._open[KEY] = self.run

    def close(self, **said: RoundReport) -> int:
        self.said = [msgspec.json.encode(said.get(member, report())) for member in OTHERS]
        return self.leased.close(None)


def report(*ranges: tuple[int, int], steps: int = 1, leaves: bool = False) -> RoundReport:
    return RoundReport(steps, leaves, [TrainedSamples(KEY, list(ranges))])


def test_what_honest_workers_trained_counts() -> None:
    one = LeasedRound()
    number = one.close(b=report((0, 8), steps=2), g1=report((8, 12), (16, 20), steps=2), g2=report((12, 16)))
    assert (one.left, number) == (RemainingSamples(20), 3)
    assert not one.refused + one.accused


@pytest.mark.parametrize("ranges", [[(0, 100)], [(96, 104)], [(0, 4), (2, 6)], [(1 << 40, (1 << 40) + 1)]])
def test_more_than_a_round_can_have_leased_is_refused(ranges: list[tuple[int, int]]) -> None:
    one = LeasedRound()
    one.close(b=report((0, 4)), g1=report(*ranges))
    assert one.refused == ["g1"]
    assert one.left == RemainingSamples(4)


def test_a_remote_worker_that_claims_what_others_trained_is_accused_and_nothing_of_it_counts() -> None:
    one = LeasedRound()
    one.close(b=report((4, 8)), g1=report((4, 12)), g2=report((12, 16)))
    assert one.accused == ["g1"]
    assert one.left == RemainingSamples(16, ((0, 4), (8, 12)))
    one.close(g1=report((4, 8)), g2=report((0, 4)))
    assert one.accused == ["g1", "g1"], "counted in a round before"


def test_two_remote_workers_that_say_the_same_are_not_told_apart() -> None:
    one = LeasedRound()
    one.close(b=report((0, 4)), g1=report((4, 8)), g2=report((4, 12)))
    assert (one.left, one.accused) == (RemainingSamples(12), [])


def test_a_remote_worker_sets_no_number_of_steps() -> None:
    one = LeasedRound()
    assert one.close(b=report((0, 4), steps=2), g1=report((4, 8), steps=1 << 24)) == 3


def test_a_remote_worker_ends_no_pass() -> None:
    one = LeasedRound()
    one.close(b=report((0, 4)), g1=report((4, 8), leaves=True))
    assert not one.run.ended
    assert one.accused == ["g1"]
    one.close(b=report((8, 12), leaves=True), g2=report(leaves=True))
    assert one.run.ended
    assert one.accused == ["g1"]


class DealtRound(GroupOfFour):
    """All were dealt 4 samples of the first 16."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = DealtBatches(self, lambda: 0, lambda samples: None)  # type: ignore[arg-type]
        self.deal()

    def deal(self) -> None:
        at = self.left.position
        self.run.give(step := LoaderStep((4, 4, 4, 4), None, ((at, at + 16),)))
        self.batches.add(self.run, step)

    def agree(self, **said: BatchReport) -> None:
        self.said = [
            msgspec.json.encode(said.get(member, dealt((4 * n, 4 * n + 4)))) for n, member in enumerate(OTHERS, 1)
        ]
        self.batches.agree()

    def lose(self, lost: str) -> None:
        """Before the step is made."""
        for batch in self.batches.take():
            places = batch.of_members(lambda member: member == lost)
            batch.run.give_back(batch.step.stream, [(place, place + 1) for place in places])


def dealt(*ranges: tuple[int, int], used: bool = True, **change: object) -> BatchReport:
    """One batch for each range."""
    batches = [ReportedBatch(KEY, 0, [one], one[1] - one[0], used) for one in ranges]
    return BatchReport(False, [msgspec.structs.replace(batch, **change) for batch in batches])


def test_a_batch_ahead_of_the_others_counts() -> None:
    one = DealtRound()
    one.agree(g1=dealt((8, 12), (24, 28)), b=dealt((4, 8), used=False))
    assert one.left == RemainingSamples(28, ((16, 24),))
    one.lose("g1")
    assert one.left == RemainingSamples(16, ((8, 12),))


@pytest.mark.parametrize("change", [{"ranges": [(96, 104)]}, {"ranges": [(10**9, 10**9 + 4)]}, {"stream": 7}])
def test_samples_that_a_pass_does_not_have_are_refused(change: dict[str, object]) -> None:
    one = DealtRound()
    one.agree(b=dealt((4, 8), used=False), g1=dealt((16, 20), **change))
    assert one.refused == ["g1"]


@pytest.mark.parametrize("ahead", [[(20, 24), (20, 24)], [(4, 8)], [(0, 16)], [(20, 24), (22, 26)]])
def test_what_others_were_dealt_is_not_given_to_a_remote_worker_that_says_so(ahead: list[tuple[int, int]]) -> None:
    """Else it would come back twice when that is lost."""
    one = DealtRound()
    one.deal()
    one.agree(b=dealt((4, 8), (20, 24), used=False), g1=dealt((8, 12), *ahead), g2=dealt((12, 16)))
    one.lose("g1")
    assert {place for place in range(100) if place in one.left} == {*range(8, 12), *range(24, 100)}


def test_a_remote_worker_skips_no_samples_of_others() -> None:
    one = DealtRound()
    one.agree(g1=dealt((0, 16), used=False))
    (batch,) = one.batches.batches
    assert batch.skipped == set(range(8, 12))
