"""How many bytes codecs really send: gradients of the network of examples/mnist.py, in the buckets of a run."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.plan import Plan
from shoal.plan.compose import compose
from shoal.wire.bucket import lay_out
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD
from shoal.wire.layout import FlatLayout

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from mnist import network

STEPS = 4


def gradients(step: int) -> tuple[FlatLayout, Tensor]:
    """One bucket's layout, and the gradients of a batch in it."""
    torch.manual_seed(3)
    model = network()
    torch.manual_seed(step)
    cross_entropy(model(torch.randn(32, 1, 28, 28)), torch.randint(10, (32,))).backward()
    named = list(model.named_parameters())
    (plan,) = lay_out([p for _, p in named], names=[name for name, _ in named])
    flat = torch.cat([named[slot.index][1].grad.reshape(-1) for slot in plan.slots])
    return plan.layout, flat


def fraction(plan: str) -> float:
    """Bytes against four an element, over some steps with the codec's memory."""
    codec = compose(Plan.parse(plan).wire)
    assert codec is not None
    layout, _ = gradients(0)
    state, sent = codec.init_state(layout), 0
    for step in range(STEPS):
        payload, state = codec.encode(gradients(step)[1], layout, state, EncodeContext(step=step))
        sent += payload.numel()
    return sent / (4 * layout.numel * STEPS)


@pytest.mark.parametrize(
    ("plan", "most"),
    [
        ("fp16", 1 / 1.99),
        ("bf16", 1 / 1.99),
        ("int8", 1 / 3.9),
        ("fixed(bits=12)", 1 / 2.6),
        ("1bit-sgd", 1 / 28),
        ("2bit-mxnet", 1 / 15),
        ("terngrad", 1 / 15),
        ("ternary(packing=golomb)", 1 / 20),
        ("qsgd(4)", 1 / 10),
        ("topk(0.01)", 1 / 60),
        ("topk(0.01), int8", 1 / 120),
        ("randomk(0.01)", 1 / 70),
        ("dgc(0.001)", 1 / 100),
        ("threshold(0.01), by_size(0)", 1 / 100),
        ("powersgd", 1 / 20),
        ("dorefa(g=4)", 1 / 7.5),
    ],
)
def test_at_most_this_much_is_sent(plan: str, most: float) -> None:
    assert fraction(plan) < most


def test_two_bits_are_a_sixteenth_and_a_head() -> None:
    layout, flat = gradients(0)
    codec = compose(Plan.parse("2bit-mxnet").wire[:1])
    assert codec is not None
    inner = codec.codec  # type: ignore[attr-defined]  # Parts: what is round it leaves vectors as they are
    assert inner.encode(flat, layout)[0].numel() == HEAD.size + layout.numel // 4 + (layout.numel % 4 > 0)


def test_alistarh_fewer_levels_take_fewer_bits() -> None:
    sizes = [fraction(f"qsgd({bits})") for bits in (8, 6, 4, 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.4 * sizes[0]


def test_golomb_is_smaller_where_most_is_nothing_and_never_larger_by_more_than_its_table() -> None:
    assert fraction("ternary(0, golomb)") < 0.75 * fraction("ternary(0)")
    dense = torch.sign(torch.randn(40_000))
    plain, golomb = (compose(Plan.parse(f"ternary(0, {packing})").wire) for packing in ("plain", "golomb"))
    assert plain is not None
    assert golomb is not None
    sizes = [codec.encode(dense.view(200, 200))[0].numel() for codec in (plain, golomb)]
    assert sizes[1] <= sizes[0] + 16


def test_nexus_sparse_is_never_larger_than_dense_by_a_hundredth() -> None:
    for ratio in (0.001, 0.01, 0.1, 0.5, 0.9, 1.0):
        assert fraction(f"topk({ratio}), by_size(0)") < 1.01
