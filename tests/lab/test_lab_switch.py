"""The switch keeps its word, on a virtual clock: delay, rate, jitter, loss, bursts, noise, stalls and cuts.

What it does is a function of the frames, the commands and the seed, so every figure here is exact or the same on every
run. That real frames on a real clock meet the same is measured by `make soak PART=clock` (test_lab_links.py).
"""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from virtual import Arrival, VirtualSwitch, compile_virtual, frame

from shoal.core.units import BitRate, TimeSpan
from shoal.lab.link import LabLink
from shoal.lab.switch import compiler

Make = Callable[..., VirtualSwitch]
MS = 1e-3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler: the lab's switch is compiled (apt-get install gcc)")
    return compile_virtual(tmp_path_factory.mktemp("switch"))


@pytest.fixture
def make(built: Path) -> Iterator[Make]:
    made: list[VirtualSwitch] = []

    def switch(link: LabLink | None = None, hosts: int = 2, seed: int = 5) -> VirtualSwitch:
        made.append(VirtualSwitch(built, hosts, seed))
        for host in range(hosts if link else 0):
            made[-1].set_link(host, link or LabLink())
        return made[-1]

    yield switch
    for each in made:
        each.close()


def numbers(arrivals: list[Arrival]) -> list[int]:
    return [arrival.number for arrival in arrivals]


def spread(share: float, of: int) -> float:
    """Five standard errors."""
    return 5 * math.sqrt(share * (1 - share) / of)


@pytest.mark.parametrize("milliseconds", [0, 5, 20])
def test_a_frame_takes_both_delays(make: Make, milliseconds: int) -> None:
    switch = make(LabLink(delay=TimeSpan.of(milliseconds * MS)))
    switch.send(0, 1)
    (arrival,) = switch.until(1.0)
    assert arrival.host == 1
    assert arrival.seconds == pytest.approx(2 * milliseconds * MS, abs=1e-9)


@pytest.mark.parametrize("mbit", [10, 100, 500])
def test_frames_get_the_rate_of_the_link(make: Make, mbit: int) -> None:
    """Bytes between the first and the last arrival, over the time between them."""
    switch = make(LabLink(rate=BitRate(mbit * 10**6)))
    for number in range(200):
        switch.send(0, 1, number, size=1514)
    arrivals = switch.until(10.0)
    assert numbers(arrivals) == list(range(200))
    assert 199 * 1514 * 8 / (arrivals[-1].seconds - arrivals[0].seconds) == pytest.approx(mbit * 1e6, rel=1e-4)


def test_the_slower_link_counts(make: Make) -> None:
    switch = make()
    switch.set_link(0, LabLink(rate=BitRate(200 * 10**6), delay=TimeSpan.of(2 * MS)))
    switch.set_link(1, LabLink(rate=BitRate(50 * 10**6), delay=TimeSpan.of(3 * MS)))
    for number in range(200):
        switch.send(0, 1, number, size=1514)
    arrivals = switch.until(10.0)
    once = 1514 * 8 * (1 / 200e6 + 1 / 50e6)
    assert arrivals[0].seconds == pytest.approx(5 * MS + once, abs=1e-6)
    assert 199 * 1514 * 8 / (arrivals[-1].seconds - arrivals[0].seconds) == pytest.approx(50e6, rel=1e-4)


def test_a_full_queue_before_a_host_drops_from_its_tail(make: Make) -> None:
    """1,000 full frames may wait there; those behind them are counted and lost, and the first ones arrive."""
    switch = make()
    switch.set_link(1, LabLink(rate=BitRate(10**6)))
    for number in range(1200):
        switch.send(0, 1, number, size=1514)
    arrivals = switch.until(100.0)
    assert numbers(arrivals) == list(range(1000))
    assert switch.stat(1).overflowed == 200


def test_loss_is_that_of_both_links(make: Make) -> None:
    switch = make(LabLink(loss=0.05))
    asked, arrived = 1 - 0.95**2, len(switch.stream(4000))
    assert abs(1 - arrived / 4000 - asked) <= spread(asked, 4000)
    assert switch.stat(0).lost + switch.stat(1).lost == 4000 - arrived


def test_losses_come_in_bursts(make: Make) -> None:
    switch = make()
    switch.set_link(0, LabLink(loss=0.1, burst=10))
    arrived = set(numbers(switch.stream(8000)))
    runs = [len(list(run)) for lost, run in itertools.groupby(range(8000), lambda n: n not in arrived) if lost]
    assert 7 < sum(runs) / len(runs) < 14
    assert 0.06 < sum(runs) / 8000 < 0.14


def test_the_seed_decides_which_frames_are_lost(make: Make) -> None:
    def course(seed: int) -> list[int]:
        return numbers(make(LabLink(loss=0.05, burst=3), seed=seed).stream(1000))

    assert course(1) == course(1)
    assert course(1) != course(2)


def test_jitter_stays_within_its_bounds_and_in_order(make: Make) -> None:
    switch = make()
    switch.set_link(0, LabLink(delay=TimeSpan.of(10 * MS), jitter=TimeSpan.of(4 * MS)))
    apart = switch.stream(500, interval=20 * MS)
    taken = [arrival.seconds - 20 * MS * arrival.number for arrival in apart]
    assert 6 * MS <= min(taken) < 6.5 * MS
    assert 13.5 * MS < max(taken) <= 14 * MS
    assert sum(taken) / len(taken) == pytest.approx(10 * MS, abs=5 * 4 * MS / math.sqrt(3 * 500))
    assert numbers(switch.stream(500, interval=1e-5)) == list(range(500)), "close behind one another they wait"


def test_duplicates(make: Make) -> None:
    switch = make()
    switch.noise(0, duplicate=0.2, flip=0.0)
    arrivals = numbers(switch.stream(2000))
    assert sorted(set(arrivals)) == list(range(2000))
    assert abs(len(arrivals) / 2000 - 1.2) <= spread(0.2, 2000)
    assert switch.stat(0).duplicated == len(arrivals) - 2000


def test_one_payload_bit_of_a_frame_is_flipped(make: Make) -> None:
    switch = make()
    switch.noise(0, duplicate=0.0, flip=0.2)
    arrivals = switch.stream(2000)
    bits = [_bits_apart(arrival.data, frame(1, number, 142)) for number, arrival in enumerate(arrivals)]
    assert set(bits) == {0, 1}
    assert abs(sum(bits) / 2000 - 0.2) <= spread(0.2, 2000)
    assert switch.stat(0).flipped == sum(bits)


def _bits_apart(one: bytes, other: bytes) -> int:
    assert one[:42] == other[:42], "heads stay whole"
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def test_a_stall_holds_frames_and_then_delivers_all(make: Make) -> None:
    switch = make(LabLink(delay=TimeSpan.of(10 * MS)))
    switch.send(0, 1, 0)
    assert switch.until(15 * MS) == []
    switch.ask(f"stall 1 {400 * 10**6}")
    switch.send(0, 1, 1)
    assert switch.until(414.9 * MS) == []
    assert numbers(switch.until(440 * MS)) == [0, 1]


def test_a_cut_loses_what_is_under_way_and_a_restored_link_is_as_before(make: Make) -> None:
    switch = make(LabLink(delay=TimeSpan.of(300 * MS)))
    switch.send(0, 1, 0)
    switch.until(100 * MS)
    switch.ask("cut 0")
    switch.send(0, 1, 1)
    switch.until(200 * MS)
    switch.ask("restore 0")
    switch.send(0, 1, 2)
    (arrival,) = switch.until(5.0)
    assert arrival.number == 2
    assert arrival.seconds == pytest.approx(800 * MS, abs=1e-9)


def test_who_may_not_hear_gets_nothing_also_of_what_is_under_way(make: Make) -> None:
    switch = make(LabLink(delay=TimeSpan.of(10 * MS)), hosts=3)
    switch.send(0, 1, 0)
    switch.until(15 * MS)
    switch.allow([[True, False, True], [True] * 3, [True] * 3])
    switch.send(0, 1, 1)
    switch.send(0, 2, 2)
    switch.send(1, 0, 3)
    assert {(arrival.host, arrival.number) for arrival in switch.until(1.0)} == {(2, 2), (0, 3)}
    assert switch.stat(0).refused == 2


def test_a_slower_rate_does_not_hold_what_comes_after_it_is_raised_again(make: Make) -> None:
    switch = make(LabLink(rate=BitRate(10**4)))
    switch.send(0, 1, 0, size=1514)
    for host in (0, 1):
        switch.set_link(host, LabLink(rate=BitRate(10**9)))
    switch.send(0, 1, 1, size=1514)
    arrivals = switch.until(100.0)
    assert numbers(arrivals) == [0, 1], "frames stay in order"
    assert arrivals[1].seconds - arrivals[0].seconds < 1e-4
