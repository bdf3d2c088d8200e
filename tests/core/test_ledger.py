"""The proof: what it finds, whatever order and attempts."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.ledger import PassFinished, PassOpened, RunResumed, SamplesTaken, prove

PASS = {"loader": 0, "epoch": 0, "number": 0}


def took(begin: int, end: int, step: int, **more: int) -> SamplesTaken:
    return SamplesTaken(
        **{**PASS, "stream": 0, "samples": end - begin, "first": step, "last": step, **more}, begin=begin, end=end
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=12))
def test_missing_and_duplicate_are_what_counting_says(ranges):
    entries = [PassOpened(**PASS, items=40), *(took(a, a + n, 1) for a, n in ranges)]
    (proof,) = prove(entries)
    places = [p for a, n in ranges for p in range(a, a + n)]
    assert proof.samples == len(places)
    assert proof.duplicate == len(places) - len(set(places))
    assert proof.missing == 40 - len(set(places))


def test_what_was_rolled_back_is_void():
    entries = [PassOpened(**PASS, items=16), took(0, 4, 1), took(4, 8, 2), took(8, 12, 3)]
    entries += [RunResumed(step=1, attempt=2, workers=3), took(4, 16, 2), PassFinished(**PASS, step=2, drops=0)]
    (proof,) = prove(entries)
    assert (proof.samples, proof.missing, proof.duplicate, proof.finished) == (16, 0, 0, True)


def test_a_dropped_remainder_is_not_missing():
    entries = [PassOpened(**PASS, items=10), took(0, 8, 1), PassFinished(**PASS, step=1, drops=4)]
    (proof,) = prove(entries)
    assert (proof.missing, proof.dropped) == (0, 2)
    (proof,) = prove([*entries[:1], took(0, 4, 1), took(6, 8, 1), *entries[2:]])
    assert (proof.missing, proof.dropped) == (4, 0)


def test_streams_of_unknown_length_are_told_apart():
    entries = [PassOpened(**PASS, items=None), took(0, 4, 1), took(0, 4, 1, stream=1), took(6, 8, 1, stream=1)]
    (proof,) = prove(entries)
    assert (proof.duplicate, proof.missing, proof.finished) == (0, 2, False)


def test_what_a_worker_writes_after_another_took_over_is_passed_over():
    entries = [PassOpened(**PASS, items=16), took(0, 4, 1, fence=(1, 1)), took(4, 8, 2, fence=(1, 1))]
    entries += [RunResumed(step=1, attempt=1, workers=2, fence=(1, 3)), took(4, 12, 2, fence=(1, 3))]
    entries += [took(8, 12, 3, fence=(1, 1)), RunResumed(step=0, attempt=1, workers=3, fence=(1, 2))]  # it wakes up
    entries += [took(12, 16, 3, fence=(1, 3)), PassFinished(**PASS, step=3, drops=0, fence=(1, 3))]
    (proof,) = prove(entries)
    assert (proof.samples, proof.missing, proof.duplicate, proof.finished) == (16, 0, 0, True)
