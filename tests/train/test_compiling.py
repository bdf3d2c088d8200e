"""Which kernels a plan has compiled before it begins."""

import pytest

from shoal.plan.plan import Plan
from shoal.train.compiling import kernels_of_plan

PLACES = {"largest", "write_places", "read_places"}
TOPK = PLACES | {"select_largest", "add_at"}


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        ("allreduce, every(1)", set()),
        ("fp16", {"largest"}),
        ("lowrank(2)", {"largest"}),
        ("onebit", {"largest", "pack_signs", "add_signs"}),
        ("topk(0.05)", TOPK),
        ("topk(0.05), fp16", TOPK | {"pack_fp16", "add_fp16"}),
        ("order(largest, 1MB)", PLACES),
        ("order(needed), int8", {"largest", "pack_int8", "add_int8"}),
        ("wire(auto)", set()),
    ],
)
def test_a_plan_compiles_what_it_uses_and_no_more(plan: str, names: set[str]) -> None:
    assert kernels_of_plan(Plan.parse(plan), 2, links=False) == names


def test_over_links_the_candidates_of_wire_auto_are_compiled_too() -> None:
    found = kernels_of_plan(Plan.parse("wire(auto)"), 2, links=True)
    assert found == TOPK | {"pack_int8", "add_int8", "pack_signs", "add_signs"}


def test_whoever_is_alone_compiles_nothing() -> None:
    assert kernels_of_plan(Plan.parse("onebit"), 1, links=False) == set()
    assert kernels_of_plan(Plan.parse("onebit"), 1, links=True)
