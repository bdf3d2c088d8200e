"""What wire(auto) chooses: by numbers, and only if it is clearly faster."""

import pytest

from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate, choose_codec

RAW = 1_000_000
PRICES = [
    CodecPrice("fp16", 0.002, 0.002, RAW / 2, 1),
    CodecPrice("int8(1024)", 0.005, 0.003, RAW / 4, 1),
    CodecPrice("onebit(2048)", 0.003, 0.003, RAW / 30, 1),
]


def steps(rate: float, computing: float) -> MeasuredStep:
    """One bucket, nothing hidden."""
    return MeasuredStep(CodecPrice("", 0.0, 0.0, RAW, 1), computing + RAW / rate, RAW / rate, RAW / rate, 0.0)


@pytest.mark.parametrize(
    ("rate", "computing", "codec"),
    [
        (1e6, 0.1, "onebit(2048)"),  # a second of transfer
        (1e7, 0.9, "fp16"),  # a tenth of a second beside much computing: halving it is as good as any
        (1e9, 0.01, ""),  # a millisecond: encoding costs more
        (1e6, 100.0, ""),  # a second beside a hundred
    ],
)
def test_the_gentlest_of_the_fast_ones_or_none(rate: float, computing: float, codec: str) -> None:
    choice = choose_codec(steps(rate, computing), PRICES, NetworkEstimate(rate))
    # gains below a tenth of the step are none
    expected = codec if min(choice.steps.values()) <= 0.9 * choice.steps[""] else ""
    assert choice.codec == expected
    assert set(choice.steps) == {"", "fp16", "int8(1024)", "onebit(2048)"}
    assert f"{rate * 8 / 1e6:.0f} Mbit/s" in choice.reason


def test_within_a_tenth_of_the_fastest_the_one_that_loses_less_is_taken() -> None:
    prices = [CodecPrice("fp16", 0.0, 0.0, 10.0, 1), CodecPrice("onebit(2048)", 0.0, 0.0, 1.0, 1)]
    assert choose_codec(steps(1e6, 0.1), prices, NetworkEstimate(1e6)).codec == "fp16"


def test_what_is_hidden_already_is_not_gained_again() -> None:
    hidden = MeasuredStep(CodecPrice("", 0.0, 0.0, RAW, 1), 2.0, 1.0, 0.02, 5.0, 50)
    assert choose_codec(hidden, PRICES, NetworkEstimate(1e6)).codec == ""


def test_without_a_rate_or_candidates_there_is_no_codec() -> None:
    assert choose_codec(steps(1e6, 0.1), PRICES, NetworkEstimate()).codec == ""
    assert choose_codec(steps(1e6, 0.1), [], NetworkEstimate(1e6)).codec == ""
