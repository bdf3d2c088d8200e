"""Every long test belongs to a part of `make soak`, and docs/testing.md says what each part shows."""

import re
from pathlib import Path
from typing import cast

import pytest
from soak_parts import PARTS, PLACES, part_by_place, select

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("faults/test_killed_worker_under_plans.py", "faults"),
        ("faults/test_network_members_change.py", "network"),
        ("membership/test_simulated.py", "simulator"),
        ("transport/test_endpoint.py", "links"),
        ("a_new_folder/test_x.py", "a_new_folder"),
    ],
)
def test_a_bare_mark_belongs_to_the_part_of_its_folder(path: str, part: str) -> None:
    assert part_by_place(path) == part


def test_every_folder_has_a_part() -> None:
    folders = {path.relative_to(HERE).parts[0] for path in HERE.glob("*/**/test_*.py")}
    assert {part_by_place(f"{folder}/test_x.py") for folder in folders} <= PARTS
    assert all(list(HERE.glob(f"{place}*")) for place in PLACES), "a place that is not there"


def test_the_page_has_every_part_once() -> None:
    page = (HERE.parent / "docs/testing.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == sorted(PARTS)


class FakeItem:
    def __init__(self, nodeid: str, *mark: pytest.MarkDecorator) -> None:
        self.nodeid, self.mark = nodeid, mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark[0].mark if self.mark else None


def test_a_part_has_its_tests_and_no_others() -> None:
    short = FakeItem("tests/faults/test_p.py::test_short")
    bare = FakeItem("tests/faults/test_p.py::test_bare", pytest.mark.soak)
    named = FakeItem("tests/faults/test_p.py::test_named", pytest.mark.soak("clock"))
    items = cast(list[pytest.Item], [short, bare, named])
    assert select(items, "faults") == ([bare], [short, named])
    assert select(items, "clock") == ([named], [short, bare])


def test_an_unknown_part_is_refused_with_those_that_exist() -> None:
    with pytest.raises(pytest.UsageError, match="no part 'fautls' of `make soak`; parts are bench, cli, clock"):
        select([], "fautls")
