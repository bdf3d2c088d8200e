"""Rows of figures that add up: slow bytes and slow workers are told apart by who waits."""

import itertools
import math

import pytest

from shoal.sync.averages import WorkerFigures, pack, unpack, width
from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate, choose_codec

EXCHANGES, WIRE = 3, 20e6


def together(
    spans: list[float], wire: float = WIRE, contended: float = 0.0
) -> tuple[MeasuredStep, NetworkEstimate, list[float]]:
    """What workers with these spans read from the sum of their rows."""
    known = NetworkEstimate(1e9, 0.001)  # links may take a burst for the rate
    workers = [WorkerFigures(1.5, span, 0.0, wire, contended, [span] * EXCHANGES, known, [1.0, 2.0]) for span in spans]
    rows = [pack(one, len(workers)) for one in workers]
    assert all(len(row) == width(EXCHANGES, 2) for row in rows)
    return unpack([sum(column) for column in zip(*rows, strict=True)], EXCHANGES, 1, 1)


def test_where_all_wait_alike_it_is_for_bytes() -> None:
    measured, network, costs = together([1.0, 1.0, 1.0, 1.0], contended=0.25)
    assert network.rate == pytest.approx(WIRE / (1.0 - 0.0005))
    assert (measured.span, measured.step, measured.price.wire) == pytest.approx((1.0, 1.5, WIRE))
    assert costs == pytest.approx([1.0, 2.0])
    assert measured.contended == pytest.approx(0.25)


def test_where_one_waits_little_the_others_wait_for_it() -> None:
    measured, network, _ = together([1.0, 1.0, 1.0, 0.02])
    assert network.rate is not None
    assert WIRE / 0.02 / 1.2 < network.rate < WIRE / 0.019
    assert measured.span == pytest.approx(0.755)


def test_what_little_went_over_tells_no_rate() -> None:
    assert together([0.01, 0.01], wire=1000.0)[1].rate == pytest.approx(1e9)


def test_exchanges_with_other_stragglers_each_time() -> None:
    known = NetworkEstimate(None, None)
    workers = [
        WorkerFigures(
            1.0, 0.5, 0.0, WIRE, 0.0, [0.1 if rank == number else 1.0 for number in range(EXCHANGES)], known, []
        )
        for rank in range(EXCHANGES)
    ]
    row = [sum(column) for column in zip(*(pack(one, EXCHANGES) for one in workers), strict=True)]
    _, network, _ = unpack(row, EXCHANGES, 0, 1)
    assert network.rate == pytest.approx(WIRE / 0.1, rel=0.08)


CODECS = [CodecPrice("fp16", 0.004, 0.004, WIRE / 2, 1), CodecPrice("onebit(2048)", 0.01, 0.01, WIRE / 30, 1)]


@pytest.mark.parametrize(("spans", "codec"), [([1.2] * 4, "onebit(2048)"), ([1.2, 1.2, 1.2, 0.02], "")])
def test_a_codec_is_chosen_for_slow_bytes_and_none_for_a_slow_worker(spans: list[float], codec: str) -> None:
    measured, network, _ = together(spans)
    assert choose_codec(measured, CODECS, network).codec == codec


LIES = (math.nan, math.inf, -math.inf, -1e300, -1.0, 0.0, 5e-324, 1e300)


@pytest.mark.parametrize("rest", LIES)
def test_whatever_a_remote_worker_adds_to_the_sums_a_codec_is_chosen_or_none(rest: float) -> None:
    places = width(EXCHANGES, 4)
    for place, lie in itertools.product(range(places), LIES):
        row = [rest] * places
        row[place] = lie
        measured, network, costs = unpack(row, EXCHANGES, 1, 1)
        prices = [CodecPrice(c.codec, *costs[2 * n : 2 * n + 2], c.wire, c.hops) for n, c in enumerate(CODECS)]
        assert choose_codec(measured, prices, network).codec in ("", "fp16", "onebit(2048)")
