"""The parts of `make soak`: which part each long test belongs to, by its mark or else by its place.

`@pytest.mark.soak("clock")` names the part; a bare `@pytest.mark.soak` belongs to the part of the longest path in
`PLACES` that its file begins with, or else to one named after its folder. docs/testing.md says what each part shows.
"""

import pytest

PLACES = {
    "bench": "bench",
    "cli": "cli",
    "core": "faults",
    "data": "training",
    "examples": "training",
    "faults": "faults",
    "faults/test_network": "network",
    "groups": "links",
    "hosts": "links",
    "lab": "links",
    "launch": "links",
    "launch/engines": "engines",
    "membership": "simulator",
    "models": "training",
    "plan": "training",
    "serve": "serve",
    "sync": "exchange",
    "train": "training",
    "train/test_codec_systems": "convergence",
    "train/test_convergence": "convergence",
    "transport": "links",
    "watch": "cli",
    "wire": "codecs",
}
"""Longer paths win. A path below tests/ -> part."""
BY_MARK = {"clock", "mnist", "page", "shakespeare"}
"""Parts that only a mark names."""
PARTS = BY_MARK | set(PLACES.values())


def part_of(item: pytest.Item) -> str | None:
    """The part a test belongs to; None if `make test` runs it."""
    mark = item.get_closest_marker("soak")
    if mark is None:
        return None
    return str(mark.args[0]) if mark.args else part_by_place(item.nodeid.split("::")[0].removeprefix("tests/"))


def part_by_place(path: str) -> str:
    """The part of a file, given as its path below tests/."""
    known = [place for place in PLACES if path.startswith(place)]
    return PLACES[max(known, key=len)] if known else path.split("/")[0]


def select(items: list[pytest.Item], part: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of a part, and all others. A name that no test has is refused."""
    parts = {id(item): part_of(item) for item in items}
    if part not in (known := {each for each in parts.values() if each} | PARTS):
        raise pytest.UsageError(f"no part {part!r} of `make soak`; parts are {', '.join(sorted(known))}")
    chosen = [item for item in items if parts[id(item)] == part]
    return chosen, [item for item in items if parts[id(item)] != part]
