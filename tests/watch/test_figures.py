"""Figures for people."""

from math import inf, nan

import pytest

from shoal.watch import figures


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (34_100_000, "34.1 MB"), (999_960, "1.0 MB"), (5e15, "5000.0 TB")],
)
def test_sizes(number: float, text: str) -> None:
    assert figures.size(number) == text


@pytest.mark.parametrize(("number", "text"), [(15360, "15360"), (12_300_000, "12.3M"), (2.5e9, "2.5G"), (inf, "inf")])
def test_counts(number: float, text: str) -> None:
    assert figures.count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.4321, "0.4321"), (0, "0.0000"), (1.25e-5, "1.25e-05"), (nan, "nan"), (-inf, "-inf")],
)
def test_values(number: float, text: str) -> None:
    assert figures.value(number) == text


def test_durations() -> None:
    assert (figures.seconds(1.234), figures.seconds(75)) == ("1.23 s", "1 min 15 s")
    assert (figures.milliseconds(0.0123), figures.milliseconds(1.5)) == ("12.30", "1500")


def test_foreign_text_cannot_steer_the_terminal() -> None:
    assert figures.clean("a\x1b[31mb\nc\r") == "a [31mb c"
