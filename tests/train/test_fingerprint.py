"""64 bits for a replica."""

from types import SimpleNamespace

import torch

from shoal.train.fingerprint import fingerprint


def of(*tensors: torch.Tensor, alone: bool = False) -> int:
    return fingerprint([SimpleNamespace(alone=alone, members=SimpleNamespace(parameters=list(tensors), served=[]))])  # type: ignore[list-item]


def test_any_flipped_bit_changes_it() -> None:
    for tensor in (
        torch.randn(3, 5),
        torch.randn(4, 4),
        torch.randn(9).half(),
        torch.randn(16)[1:9].t(),
        torch.tensor(2.0),
    ):
        whole = of(tensor)
        assert whole == of(tensor.clone())
        bits = tensor.contiguous().clone().view(-1).view(torch.uint8)
        for place in range(len(bits)):
            changed = bits.clone()
            changed[place] ^= 1 << (place % 8)
            assert of(changed.view(tensor.dtype).view(tensor.shape)) != whole


def test_the_order_of_parameters_counts() -> None:
    a, b = torch.randn(4), torch.randn(4)
    assert of(a, b) != of(b, a)
    assert of(a, alone=True) == of(b, alone=True)
