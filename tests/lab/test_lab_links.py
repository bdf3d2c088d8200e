"""Real frames meet what the lab was asked for: cuts, partitions, noise, events and seeds, counted inside the hosts.

Times, rates and shares are those of the switch and shown on a virtual clock (test_lab_switch.py); here they are
measured on the real one, in `make soak PART=clock`.
"""

import contextlib
import itertools
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import threading
import time

import msgspec
import pytest

from shoal.core.units import BitRate, TimeSpan
from shoal.lab.apply import apply
from shoal.lab.inside import Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.link import LabLink
from shoal.lab.load import parse_lab
from shoal.lab.measure import fate, rate, round_trips
from shoal.lab.probes import DatagramFate
from shoal.lab.timeline import EventTimeline

clock = pytest.mark.soak("clock")


def set_both(lab: NetworkLab, link: LabLink) -> None:
    lab.set_link(0, link)
    lab.set_link(1, link)


def best_rate(lab: NetworkLab) -> float:
    """Of three flows: where this machine has no time a flow is slower than its link, never faster."""
    return max(rate(lab, 0, 1, seconds=0.8, start=0.4) for _ in range(3))


def heard(lab: NetworkLab, source: int, target: int) -> bool:
    """Whether frames that the source sends now go down the target's link: all of them, or none.

    The switch takes what was sent before it answers, and passes it on before it answers again.
    """
    before = lab.stat(target).down_frames
    with inside(lab, source, send_twenty, lab.hosts[target].address) as child:
        child.hear()
        lab.stat(target)
    came = lab.stat(target).down_frames - before
    assert came in (0, 20)
    return came == 20


def send_twenty(say: Say, address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _ in range(20):
            s.sendto(b"under way", (address, 9))
    say("sent")


def spread(share: float, of: int) -> float:
    """Five standard errors: frames of the system draw from the same seeded row, so every run is another draw."""
    return 5 * math.sqrt(share * (1 - share) / of)


@clock
@pytest.mark.parametrize("milliseconds", [0, 5, 20])
def test_round_trips_take_twice_both_delays(lab: NetworkLab, milliseconds: int) -> None:
    set_both(lab, LabLink(delay=TimeSpan.of(milliseconds / 1e3)))
    times = round_trips(lab, 0, 1, 60)
    assert len(times) == 60
    # Other jobs on this machine may make most of the echoes late, but none early.
    assert 0 <= min(times) - 4 * milliseconds / 1e3 < 1e-3


@clock
@pytest.mark.parametrize("mbit", [10, 100, 500])
def test_a_flow_gets_the_rate_of_the_link(lab: NetworkLab, mbit: int) -> None:
    set_both(lab, LabLink(rate=BitRate(mbit * 10**6)))
    assert best_rate(lab) == pytest.approx(mbit * 1e6, rel=0.05)


@clock
def test_the_slower_link_counts(lab: NetworkLab) -> None:
    lab.set_link(0, LabLink(rate=BitRate(200 * 10**6), delay=TimeSpan.of(0.002)))
    lab.set_link(1, LabLink(rate=BitRate(50 * 10**6), delay=TimeSpan.of(0.003)))
    assert best_rate(lab) == pytest.approx(50e6, rel=0.05)
    assert min(round_trips(lab, 0, 1, 40)) == pytest.approx(0.01, abs=1e-3)


@clock
def test_loss_is_that_of_both_links(lab: NetworkLab) -> None:
    set_both(lab, LabLink(loss=0.05))
    asked = 1 - 0.95**2
    counted = fate(lab, 0, 1, 8000)
    assert abs(counted.loss - asked) <= spread(asked, counted.sent)
    assert counted.mean_burst < 1.5
    assert counted.reordered == counted.duplicates == counted.damaged == 0


@clock
def test_losses_come_in_bursts(lab: NetworkLab) -> None:
    lab.set_link(0, LabLink(loss=0.1, burst=10))
    counted = fate(lab, 0, 1, 12_000)
    assert 6 < counted.mean_burst < 15
    assert 0.05 < counted.loss < 0.15


@clock
def test_jitter_stays_within_its_bounds_and_in_order(lab: NetworkLab) -> None:
    lab.set_link(0, LabLink(delay=TimeSpan.of(0.01), jitter=TimeSpan.of(0.004)))
    times = round_trips(lab, 0, 1, 40, interval=0.02)
    assert min(times) >= 0.012
    assert statistics.median(times) < 0.029  # 28 ms is the most the link may add; the machine may delay some
    assert statistics.stdev(times) > 0.001
    assert fate(lab, 0, 1, 2000).reordered == 0


def test_a_cut_is_silence_both_ways_until_it_is_restored(lab: NetworkLab) -> None:
    lab.cut(1)
    assert not heard(lab, 0, 1)
    assert not heard(lab, 1, 0)
    assert heard(lab, 0, 2)
    lab.restore(1)
    assert heard(lab, 0, 1)
    assert heard(lab, 1, 0)


def test_a_cut_loses_what_is_under_way(lab: NetworkLab) -> None:
    lab.set_link(0, LabLink(delay=TimeSpan.of(3600)))
    before = lab.stat(0), lab.stat(1)
    with inside(lab, 0, send_twenty, lab.hosts[1].address) as child:
        child.hear()
        lab.cut(0)
        lab.restore(0)
    lab.set_link(0, LabLink())
    assert fate(lab, 0, 1, 10).received == 10
    assert lab.stat(0).up_frames - before[0].up_frames == 30
    assert lab.stat(1).down_frames - before[1].down_frames == 10


def test_what_was_sent_before_a_command_is_under_way_when_it_is_obeyed(lab: NetworkLab) -> None:
    """Also where the switch had no time in between, and finds frames and command together."""
    lab.set_link(0, LabLink(delay=TimeSpan.of(3600)))
    before, switch = lab.stat(0), lab._ready._process.pid
    os.kill(switch, signal.SIGSTOP)
    with inside(lab, 0, send_twenty, lab.hosts[1].address) as child:
        child.hear()
        threading.Timer(0.2, os.kill, (switch, signal.SIGCONT)).start()
        lab.cut(0)
    assert lab.stat(0).up_frames - before.up_frames == 20


def test_one_way(lab: NetworkLab) -> None:
    lab.silence([0], [1])
    assert not heard(lab, 0, 1)
    assert heard(lab, 1, 0)
    assert heard(lab, 0, 2)
    assert lab.stat(0).refused >= 20
    lab.silence([0], [1], heard=True)
    assert heard(lab, 0, 1)


def test_a_partition_parts_groups_and_nothing_else(lab: NetworkLab) -> None:
    lab.partition([0, 1])
    ways = [(0, 1), (2, 3), (3, 1)]
    assert [heard(lab, *way) for way in ways] == [True, True, False]
    lab.heal()
    assert all(heard(lab, *way) for way in ways)


def test_duplicates_arrive(lab: NetworkLab) -> None:
    lab.noise(0, duplicate=0.2)
    before, counted = lab.stat(0).duplicated, fate(lab, 0, 1, 500)
    assert counted.received == 500
    assert counted.duplicates == lab.stat(0).duplicated - before > 0


def test_flipped_bits_arrive_only_where_nobody_checks(lab: NetworkLab) -> None:
    lab.noise(0, flip=0.2)
    before, bare = lab.stat(0).flipped, fate(lab, 0, 1, 500, checked=False)
    assert bare.damaged == lab.stat(0).flipped - before > 0
    assert bare.damaged + bare.received == 500
    before, checked = lab.stat(0).flipped, fate(lab, 0, 1, 500)
    assert checked.damaged == 0
    assert checked.sent - checked.received == lab.stat(0).flipped - before > 0


@clock
def test_a_stall_holds_frames_and_then_delivers_all(lab: NetworkLab) -> None:
    lab.stall(1, TimeSpan.of(0.4))
    times = round_trips(lab, 0, 1, 30, interval=0.01)
    assert len(times) == 30
    assert max(times) > 0.15
    assert min(round_trips(lab, 0, 1, 20)) < 0.1


def test_the_events_of_a_spec_happen(lab: NetworkLab) -> None:
    ways = "at = '1s'\nfor = '1s'\ncut_from = 0\ncut_to = 1\n[[event]]\nat = '1s'\nfor = '1s'\ncut = 3"
    change = "at = '1s'\nfor = '1s'\nhost = 2\ndelay = '3ms'\n[[event]]\nat = '1s'\nhost = 2\nstall = true\nfor = '1ms'"
    timeline = EventTimeline(parse_lab(f"hosts = 4\n[[event]]\n{ways}\n[[event]]\n{change}"))
    for due in timeline.due(1.0, 0):
        apply(lab, due.action)
    assert [heard(lab, *way) for way in [(0, 1), (1, 0), (3, 2)]] == [False, True, False]
    assert lab.link(2).delay == TimeSpan.of(0.003)
    for due in timeline.due(2.0, 0):
        apply(lab, due.action)
    assert [heard(lab, *way) for way in [(0, 1), (3, 2)]] == [True, True]
    assert lab.link(2) == LabLink()


def test_the_seed_decides_which_frames_are_lost(possible: None) -> None:
    def course(seed: int) -> DatagramFate:
        with NetworkLab(parse_lab(f"2 hosts, 5%, burst 3, seed {seed}")) as lab:
            return fate(lab, 0, 1, 500)

    first, again, other = course(1), course(1), course(2)
    assert first == again
    assert first != other


def test_a_slower_link_still_takes_the_packets_that_wait_for_it(lab: NetworkLab) -> None:
    """TCP hands down 64 KiB in one piece; a queue whose bucket became smaller would hold such a piece for ever."""
    for mbit in (1000, 100, 10):
        lab.set_link(0, LabLink(rate=BitRate(mbit * 10**6)))
        show = ["tc", "-n", lab.hosts[0].name, "-json", "qdisc", "show", "dev", "eth0"]
        (queue,) = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
        assert queue["kind"] == "tbf"
        assert queue["options"]["burst"] >= 1 << 16
        assert 8 * queue["options"]["rate"] == mbit * 10**6


PORT, FLOWS, EACH = 7811, 6, 0.6
"""Seconds at each rate."""


def pour(say: Say, address: str, until: float) -> None:
    """Send as much as the link takes, in several flows."""

    def one() -> None:
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), 10.0) as flow:
            flow.settimeout(10.0)
            while time.monotonic() < until:
                flow.sendall(bytes(1 << 20))

    flows = [threading.Thread(target=one, daemon=True) for _ in range(FLOWS)]
    for flow in flows:
        flow.start()
    for flow in flows:
        flow.join(max(0.0, until + 5.0 - time.monotonic()))
    say(None)


def drain(say: Say, address: str, until: float) -> None:
    """The bytes that came in each half of the time at a rate, in order."""
    came = [0]

    def one(flow: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := flow.recv(1 << 20):
                came[0] += len(data)

    with socket.create_server((address, PORT), backlog=FLOWS) as endpoint:
        say(None)
        for _ in range(FLOWS):
            threading.Thread(target=one, args=(endpoint.accept()[0],), daemon=True).start()
        counts = [0]
        while time.monotonic() < until:
            time.sleep(EACH / 2)
            counts.append(came[0])
    say([b - a for a, b in itertools.pairwise(counts)])


@clock
def test_flows_go_on_though_their_link_becomes_slower_under_way(lab: NetworkLab) -> None:
    """What waits before the device was cut for the faster link; it must not wait for ever."""
    rates = [1000, 100, 10] * 3
    address, until = lab.hosts[1].address, time.monotonic() + EACH * len(rates)
    set_both(lab, LabLink(rate=BitRate(10**9)))
    with inside(lab, 1, drain, address, until) as down:
        down.hear(10.0)
        with inside(lab, 0, pour, address, until):
            for mbit in rates:
                set_both(lab, LabLink(rate=BitRate(mbit * 10**6)))
                time.sleep(EACH)
            came = msgspec.convert(down.hear(30.0), list[int])
    silent = "".join("." if count else "0" for count in came)
    assert "000" not in silent, came  # TCP may need two of its timeouts after a loss
