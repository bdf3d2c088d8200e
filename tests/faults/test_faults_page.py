"""docs/faults.md says what is tested: every row that was promised, under the names and in the places it says."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| ([A-Z]\d+) \|(.*)\|$", (HERE.parents[1] / "docs/faults.md").read_text(), re.M)
PROMISED = {
    *(f"P{number}" for number in (*range(1, 10), 11, 12, 13)),
    *(f"N{number}" for number in (1, 2, 3, *range(5, 14))),
    *(f"S{number}" for number in range(1, 9)),
    *(f"A{number}" for number in (3, 4, 5, 6, 9, 10, 14, 15)),
}


def places() -> dict[str, set[str]]:
    """By name of each test of a row: where it runs. A name may stand in several files."""
    found: dict[str, set[str]] = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and re.match(r"test_[a-z]\d", node.name):
                found.setdefault(node.name, set()).update(_where(node))
    return found


def _where(test: ast.FunctionDef) -> set[str]:
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    if any(mark.startswith("pytest.mark.soak") for mark in marks):
        return {"soak"}
    return {"test", "soak"} if any("pytest.mark.soak" in mark for mark in marks) else {"test"}


def test_every_row_is_on_the_page_once() -> None:
    assert sorted(row for row, _ in ROWS) == sorted(PROMISED)


@pytest.mark.parametrize(("row", "text"), ROWS, ids=[row for row, _ in ROWS])
def test_a_row_names_tests_that_are_there(row: str, text: str) -> None:
    named, known = re.findall(r"`(test_\w+)` \(([a-z, ]+)\)", text), places()
    assert named
    assert len(named) == text.count("`test_") - text.count("`test_safety"), "a test without its place"
    for name, where in named:
        assert row.lower() in name.split("_"), name
        assert name in known, name
        assert set(where.split(", ")) == known[name], name


def test_no_row_is_tested_that_the_page_does_not_know() -> None:
    rows = {word.upper() for name in places() for word in name.split("_")[1:] if re.fullmatch(r"[a-z]\d+", word)}
    assert rows - PROMISED == {"O1"}, "O1: replicas that differ"


@pytest.mark.parametrize(
    "page", [*(HERE.parents[1] / "docs").glob("*.md"), HERE.parents[1] / "README.md"], ids=lambda page: page.name
)
def test_files_of_tests_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"tests/[\w/]+\.py", page.read_text())
    assert [name for name in named if not (HERE.parents[1] / name).exists()] == []
