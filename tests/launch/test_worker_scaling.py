"""A number of workers that a script asks for, as workers to add and to take out; asked again it changes nothing."""

import pytest

from shoal.core.clock import Deadline
from shoal.hosts.status_board import BYTES, StatusBoard
from shoal.launch.run_requests import ScaleRequest
from shoal.launch.scaling import WorkerScaling, WorkerSlot


def scaling(workers: int, capacity: int) -> WorkerScaling:
    slots = {number: WorkerSlot(starts=1) for number in range(workers)}
    return WorkerScaling(slots, capacity, StatusBoard(memoryview(bytearray(BYTES))))


@pytest.mark.parametrize(
    ("wanted", "added", "removed"), [(4, [2, 3], []), (2, [], []), (1, [], [1]), (9, [2, 3], [])], ids=str
)
def test_a_number_is_what_is_missing_or_too_many(wanted: int, added: list[int], removed: list[int]) -> None:
    found = scaling(2, capacity=4)
    request = ScaleRequest(workers=wanted)
    assert found.begin(found.resolve(request, least=1)) == (added, removed)
    again = found.resolve(request, least=1)
    assert (found.begin(again), again.add) == (([], []), max(0, wanted - 4))


def test_a_worker_that_is_started_again_is_there() -> None:
    slots = {0: WorkerSlot(starts=1), 1: WorkerSlot(starts=1, due=Deadline.after(1.0))}
    found = WorkerScaling(slots, 4, StatusBoard(memoryview(bytearray(BYTES))))
    assert found.resolve(ScaleRequest(workers=2), least=1) == ScaleRequest()


def test_as_many_stay_as_the_run_needs() -> None:
    found = scaling(3, capacity=3)
    assert found.resolve(ScaleRequest(workers=1), least=2) == ScaleRequest(remove=(2,))


def test_a_difference_stays_one() -> None:
    request = ScaleRequest(add=2, token="ab")
    assert scaling(1, 4).resolve(request, least=1) is request
