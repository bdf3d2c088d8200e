"""The chart: right columns, right rows, right letters."""

import io
from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shoal.watch.draw.curve import BrailleCurve, columns, raster


def drawn(curve: BrailleCurve, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=80).print(curve)
    file.seek(0)
    return file.read().splitlines()


def test_columns_are_means_of_buckets_and_lines_between() -> None:
    assert columns([(0, 1.0), (1, 3.0), (9, 2.0)], 2) == [2.0, 2.0]
    assert columns([(0, 0.0), (10, 5.0)], 6) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert columns([(7, 4.0)], 6) == [4.0]


def test_the_highest_is_on_top_and_columns_are_joined() -> None:
    cells = raster([1.0, 0.0], width=1, height=2)
    assert cells == [[0x01 | 0x10 | 0x20 | 0x80], [0x08 | 0x10 | 0x20 | 0x80]]


def test_the_labels_are_the_range_that_is_drawn() -> None:
    lines = drawn(BrailleCurve([(step, 2.0 - step / 100) for step in range(101)]))
    assert lines[0].split(" |")[0].strip() == "2.0000"
    assert lines[7].split(" |")[0].strip() == "1.0000"
    assert lines[8].split() == ["step", "0", "100"]
    assert max(map(len, lines)) <= 80


def test_values_that_are_not_finite_are_counted() -> None:
    lines = drawn(BrailleCurve([(1, 1.0), (2, nan), (3, inf), (4, 0.5)]))
    assert lines[-1] == "not drawn: 2 of 4 steps, their value is not finite"
    assert drawn(BrailleCurve([(1, nan)])) == ["not drawn: 1 of 1 steps, their value is not finite"]


def test_ascii_where_nothing_else_is_at_hand() -> None:
    lines = drawn(BrailleCurve([(1, 1.0), (2, 0.0)]), encoding="ascii")
    assert "*" in lines[0]
    assert "*" in lines[7]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=300))
def test_any_finite_curve_can_be_drawn(numbers: list[float]) -> None:
    lines = drawn(BrailleCurve(list(enumerate(numbers))))
    assert len(lines) == 9
    assert max(map(len, lines)) <= 80
