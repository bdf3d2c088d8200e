"""The verdict on a codec: its arithmetic, its words, and what it says when it does not know."""

import pytest
from fake_runs import ended, make_run, started

from shoal.core.events import BucketFigures, BucketTimes, CodecPriced, RunEvent
from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate
from shoal.watch.exchanged import ExchangeTotals, add_buckets
from shoal.watch.verdict import judge, network, verdict
from shoal.watch.worker import read_workers

RAW = 1_000_000
LINK = NetworkEstimate(rate=12.5e6, rtt=0.002)
PRICES = [CodecPrice("", 0.0, 0.0, RAW, 1), CodecPrice("fp16", 0.001, 0.001, RAW / 2, 1)]
"""Between two workers: 81 ms without a codec, 41 ms with fp16."""


def coded(encode: float, wire: float, wait: float, codec: str = "topk(0.01)") -> MeasuredStep:
    return MeasuredStep(CodecPrice(codec, encode, 0.001, wire, 1), 0.1 + encode + 0.001 + wait, wait, wait, 0.0)


def test_a_codec_that_pays() -> None:
    found = judge(coded(0.008, 12_500, 0.002), LINK, PRICES, "gather")
    assert found.saved == pytest.approx(0.079)
    assert found.words == ["topk(0.01) saved about 79 ms of transfer and cost 9.0 ms of encoding and decoding a step"]
    assert (found.faster, found.times, found.costs_time) == (None, 1.0, False)
    assert [other.codec for other in found.alternatives] == ["", "fp16"]


def test_a_codec_that_costs_time() -> None:
    found = judge(coded(0.120, 12_500, 0.002), LINK, PRICES, "gather")
    assert found.costs_time
    assert found.faster == "fp16"
    assert found.times == pytest.approx(0.223 / 0.143, rel=1e-3)
    assert found.words[-1] == "topk(0.01) costs you time on this link: fp16 would be about 1.6x faster"


def test_a_codec_that_pays_less_than_another_would() -> None:
    found = judge(coded(0.060, 12_500, 0.002), LINK, PRICES, "gather")
    assert not found.costs_time
    assert found.words[-1] == "fp16 would be about 1.1x faster on this link"


def test_inside_one_host_nothing_is_saved() -> None:
    prices = [CodecPrice("", 0.0, 0.001, 0.0, 1), CodecPrice("fp16", 0.001, 0.002, 0.0, 1)]
    found = judge(coded(0.020, 0.0, 0.0), NetworkEstimate(), prices, "gather")
    assert not found.wired
    assert found.saved is None
    assert found.words[0].endswith("inside one host nothing crosses a socket, so it saved nothing")
    assert found.words[1] == "topk(0.01) costs you time inside one host: no codec would be about 1.2x faster"


def test_without_a_rate_it_says_so() -> None:
    found = judge(coded(0.020, 900.0, 0.001), NetworkEstimate(), PRICES, "gather")
    assert (found.saved, found.alternatives, found.faster) == (None, [], None)
    assert "its saving is unknown" in found.words[0]


def test_no_codec_hears_what_fp16_would_do() -> None:
    found = judge(MeasuredStep(PRICES[0], 0.181, 0.081, 0.081, 0.0), LINK, PRICES, "sum")
    assert found.words == [
        "no codec: 81 ms of transfer a step, 0% of it hidden",
        "fp16 would be about 1.3x faster on this link",
    ]


def buckets(step: int, measured: int, encode: float, codec: str = "topk(0.01)", wire: float = 1e6) -> BucketTimes:
    figures = BucketFigures(
        layers=["a.weight", "a.bias"], raw=4000.0, sent=100.0, wire=wire, encode=encode, transfer=0.4, wait=0.1,
        decode=0.2, gradient=2.0, residual=6.0,
    )  # fmt: skip
    return BucketTimes(
        at=1.0, step=step, measured=measured, codec=codec, meets="gather", buckets=[figures], span=0.4, room=0.1,
        step_seconds=1.0,
    )  # fmt: skip


def test_events_of_one_codec_are_averaged_and_another_begins_anew() -> None:
    known: list[ExchangeTotals] = []
    add_buckets(known, buckets(10, 1, 0.1))
    add_buckets(known, buckets(20, 3, 0.5))
    assert (len(known), known[0].measured, known[0].total("encode")) == (1, 4, pytest.approx(0.4))
    assert known[0].buckets[0].hidden == pytest.approx(0.75)
    add_buckets(known, buckets(30, 2, 0.7, codec="fp16"))
    assert (known[0].codec, known[0].measured, known[0].total("encode")) == ("fp16", 2, 0.7)


def test_large_transfers_tell_a_rate_and_small_ones_do_not() -> None:
    known: list[ExchangeTotals] = []
    add_buckets(known, buckets(10, 1, 0.1))
    assert network(known).rate == pytest.approx(2.5e6)
    add_buckets(few := [], buckets(10, 1, 0.1, wire=100.0))
    assert network(few).rate is None


def test_the_record_of_a_run_is_judged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    events: list[RunEvent] = [
        started(0),
        buckets(10, 4, 0.1),
        CodecPriced(at=1.0, codec="", encode=0.0, decode=0.0, wire=4e6, hops=1),
        ended(),
    ]
    found = verdict(read_workers(make_run(tmp_path, events, [started(1), buckets(10, 4, 0.1), ended()])))
    assert found is not None
    assert found.saved == pytest.approx(1.2)
    assert found.words[0].startswith("topk(0.01) saved about 1200 ms of transfer")
    assert verdict([]) is None
