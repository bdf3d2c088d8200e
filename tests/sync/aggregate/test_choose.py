"""Two stages where they save bytes, gathering elsewhere."""

import pytest

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.sync.aggregate.choose import choose, gathered, staged
from shoal.wire.layout import FlatLayout

LARGE = [FlatLayout.of([("matrix", (1000, 1000)), ("bias", (1000,))])]


@pytest.mark.parametrize("plan", ["onebit", "twobit", "ternary", "int8", "qsgd", "fixed", "int8, feedback(on)"])
def test_dense_codecs_meet_in_two_stages_from_three_workers_on(plan: str) -> None:
    codec = compose(Plan.parse(plan).wire)
    assert codec is not None
    assert [choose(codec, LARGE, workers) for workers in (1, 2, 3, 4, 16)] == ["gather"] * 2 + ["twostage"] * 3
    # about 2 payloads instead of p - 1
    assert staged(codec, LARGE, 16) < 0.15 * gathered(codec, LARGE, 16)


@pytest.mark.parametrize("plan", ["topk(0.01)", "dgc", "randomk(0.1)", "threshold(0.1)"])
def test_sparsifiers_are_gathered(plan: str) -> None:
    codec = compose(Plan.parse(plan).wire)
    assert codec is not None
    assert choose(codec, LARGE, 16) == "gather"


def test_small_buckets_are_gathered() -> None:
    """Heads would be all that travels."""
    codec = compose(Plan.parse("onebit").wire)
    assert codec is not None
    assert choose(codec, [FlatLayout.of([("matrix", (8, 8))])], 4) == "gather"
