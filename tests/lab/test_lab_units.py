"""Rates, delays, shares and moments: text to value and back."""

import pytest
from hypothesis import given, settings
from specs import delays, rates, shares

from shoal.core.errors import UsageError
from shoal.core.units import BitRate, EventTime, TimeSpan, parse_share, write_share


@pytest.mark.parametrize(
    ("text", "bits"), [("100mbit", 10**8), ("1.5 Gbit", 15 * 10**8), ("64kbit", 64_000), ("unlimited", 0)]
)
def test_rates(text: str, bits: int) -> None:
    assert BitRate.parse(text).bits == bits


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), ("1.5s", 1.5), ("2min", 120), ("250us", 250e-6)])
def test_delays(text: str, seconds: float) -> None:
    assert TimeSpan.parse(text).seconds == seconds


@settings(max_examples=60, deadline=None)
@given(rates, delays, shares)
def test_every_value_is_what_its_text_says(rate: BitRate, delay: TimeSpan, share: float) -> None:
    assert BitRate.parse(str(rate)) == rate
    assert TimeSpan.parse(str(delay)) == delay
    assert EventTime.parse(str(EventTime(delay))) == EventTime(delay)
    assert parse_share(write_share(share)) == share


@pytest.mark.parametrize("text", ["100", "100mbps", "-1mbit", "0mbit", "mbit", "1e3mbit", "200gbit", 100])
def test_no_rate(text: object) -> None:
    with pytest.raises(UsageError, match="write"):
        BitRate.parse(text)


@pytest.mark.parametrize("text", ["20", "20 m", "-1s", "200h", 20, "١s"])
def test_no_delay(text: object) -> None:
    with pytest.raises(UsageError, match="write"):
        TimeSpan.parse(text)


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", "200%", True, float("nan"), "x%", "nan%"])
def test_no_share(value: object) -> None:
    with pytest.raises(UsageError, match="write"):
        parse_share(value)


def test_a_moment_is_a_time_or_a_step() -> None:
    assert EventTime.parse("step 200") == EventTime(step=200)
    assert EventTime.parse("30s") == EventTime(TimeSpan(30 * 10**9))
    with pytest.raises(UsageError, match="'30s' or 'step 200'"):
        EventTime.parse("at 3")
