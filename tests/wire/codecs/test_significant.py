"""A change waits until it is significant for its value; what is sent and what waits are what there was."""

from dataclasses import dataclass

import torch

from shoal.wire.codecs.filter import FilterCodec
from shoal.wire.codecs.significant import SignificantCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.parts import PartialCodec

LAYOUT = FlatLayout.of([("large", (2, 4)), ("bias", (2,)), ("small", (1, 4))])
VALUES = torch.tensor([100.0, -100, 100, -100, 100, 100, 0, 0, 5, 5, 1, -1, 1, -1])


def sent(codec: PartialCodec, changes: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    out = torch.zeros(codec.max_bytes(LAYOUT), dtype=torch.uint8)
    length = codec.encode_into(changes, LAYOUT, state, EncodeContext(reference=VALUES), out)
    return codec.decode(out[:length], LAYOUT)


def test_each_layer_and_value_has_a_measure_of_its_own() -> None:
    """A value of zero is measured by the mean of its layer; vectors travel as they are."""
    codec = PartialCodec(ErrorFeedback(SignificantCodec(0.1)))
    changes = torch.full((14,), 0.5)
    changes[0], changes[6] = 11.0, 9.0  # the root mean square of the first layer is 86.6
    found = sent(codec, changes, codec.init_state(LAYOUT))
    assert found.tolist() == [11.0, 0, 0, 0, 0, 0, 9.0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_small_changes_add_up_until_they_count() -> None:
    codec = PartialCodec(ErrorFeedback(SignificantCodec(0.1)))
    state, total = codec.init_state(LAYOUT), torch.zeros(14)
    chance = torch.Generator().manual_seed(0)
    made = torch.zeros(14)
    silent = 0
    for _ in range(60):
        changes = torch.randint(0, 3, (14,), generator=chance).float()
        made += changes
        found = sent(codec, changes, state)
        silent += not found[:8].any()
        total += found
    coded = torch.tensor([*range(8), *range(10, 14)])
    assert torch.equal((made - total)[coded], state["residual"])
    assert torch.equal(made[8:10], total[8:10])
    assert silent > 30, "changes of 1 beside values of 100 travel about every tenth time"


@dataclass(frozen=True)
class UpwardCodec(FilterCodec):
    """A filter as a user would write it."""

    name = "upward"

    def choose(self, changes: torch.Tensor, values: torch.Tensor | None, layout: FlatLayout) -> torch.Tensor:
        return changes > 0


def test_a_filter_of_ones_own_is_one_method() -> None:
    values = torch.tensor([1.0, -2, 0, 3] * 100)
    payload, _ = UpwardCodec().encode(values)
    assert torch.equal(UpwardCodec().decode(payload, FlatLayout.of([("values", (400,))])), values.clamp(min=0))
