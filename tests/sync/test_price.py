"""The arithmetic of what another codec would do."""

import pytest

from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate, forecast, merged, summed, summing_hops

LINK = NetworkEstimate(rate=1e6, rtt=0.010)


def test_a_transfer_is_bytes_and_latencies() -> None:
    assert LINK.seconds(500_000, 2) == pytest.approx(0.510)
    assert LINK.seconds(0, 2) == 0.0
    assert NetworkEstimate().seconds(500_000, 2) == 0.0


def test_several_ways_are_known_by_the_fastest_rate_and_the_longest_trip() -> None:
    assert merged(
        [NetworkEstimate(2.0, 0.1), NetworkEstimate(3.0, None), NetworkEstimate(None, 0.5)]
    ) == NetworkEstimate(3.0, 0.5)
    assert merged([]) == NetworkEstimate()


def test_what_was_measured_is_forecast_as_it_was() -> None:
    """No room to hide in, one bucket, nobody late."""
    now = CodecPrice("onebit", 0.004, 0.001, 95_000, 2)
    measured = MeasuredStep(now, step=0.205, span=0.105, wait=0.105, room=0.0)
    found = forecast(measured, now, LINK)
    assert found.step == pytest.approx(measured.step)
    assert found.transfer == pytest.approx(measured.span)


def test_fewer_bytes_make_a_slow_link_faster_and_more_make_it_slower() -> None:
    measured = MeasuredStep(CodecPrice("fp16", 0.0, 0.0, 1_000_000, 1), step=1.105, span=1.005, wait=1.005, room=0.0)
    less, more = (forecast(measured, CodecPrice("x", 0.0, 0.0, wire, 1), LINK) for wire in (500_000, 2_000_000))
    assert less.step == pytest.approx(0.605)
    assert more.step == pytest.approx(2.105)


def test_who_comes_late_comes_late_whatever_travels() -> None:
    measured = MeasuredStep(CodecPrice("", 0.0, 0.0, 1_000_000, 1), step=3.1, span=3.005, wait=3.005, room=0.0)
    assert forecast(measured, CodecPrice("x", 0.0, 0.0, 1_000, 1), LINK).transfer == pytest.approx(2.006)


def test_fewer_bytes_free_the_cores_that_the_links_had() -> None:
    now = CodecPrice("", 0.0, 0.0, 1_000_000, 1)
    measured = MeasuredStep(now, step=3.005, span=1.005, wait=1.005, room=0.0, contended=1.5)
    assert forecast(measured, now, LINK).step == pytest.approx(3.005)
    half, little = (forecast(measured, CodecPrice("x", 0.0, 0.0, wire, 1), LINK) for wire in (500_000, 10_000))
    assert half.step == pytest.approx(2.0 - 0.75 + 0.505)
    assert little.step == pytest.approx(2.0 - 1.485 + 0.015)
    more = forecast(measured, CodecPrice("x", 0.0, 0.0, 2_000_000, 1), LINK)
    assert more.step == pytest.approx(2.0 + 2.005), "nobody knows how much more"


def test_a_transfer_hides_behind_the_backward_pass_but_its_last_bucket_does_not() -> None:
    measured = MeasuredStep(CodecPrice("", 0.0, 0.0, 400_000, 0), step=1.0, span=0.4, wait=0.1, room=5.0, buckets=4)
    assert forecast(measured, CodecPrice("x", 0.0, 0.0, 800_000, 0), LINK).step == pytest.approx(0.9 + 0.2)


def test_sums_send_two_shares_less_one() -> None:
    assert summed(100, 2) == 100
    assert summed(100, 4) == 150
    assert [summing_hops(n) for n in (1, 2, 3, 4)] == [1, 1, 4, 6]
