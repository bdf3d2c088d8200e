"""Twins: what a script computes from one is computed from both, and the script sees only its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.train.precision.twin import TwinTensor, pair


class Ear:
    """Keeps what a twin tells."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []

    @contextmanager
    def __call__(self, loss: Tensor, gradient: Any, retain: bool) -> Iterator[None]:
        self.losses.append(loss)
        loss.backward(gradient, retain_graph=retain)
        yield


def sides(shape: tuple[int, ...] = (6, 3)) -> tuple[Tensor, Tensor, Ear, Any]:
    here, there = (torch.randn(shape, requires_grad=True) for _ in range(2))
    ear = Ear()
    return here, there, ear, pair(here * 2, there * 2, ear)


LOSSES = {
    "cross_entropy": lambda out: F.cross_entropy(out, torch.tensor([0, 1, 2, 0, 1, 2])),
    "squares": lambda out: ((out - torch.ones(6, 3)) ** 2).mean(),
    "reflected": lambda out: (1 - torch.ones(6, 3) / (out.abs() + 1)).sum(),
    "pieces": lambda out: torch.stack([piece.sum() for piece in out.split(2)]).prod(),
    "indexed": lambda out: torch.cat([out[:2], out[3:]]).logsumexp(0)[1],
    "scaled": lambda out: 1024.0 * out.flatten().softmax(0).max(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_both_sides_get_the_gradient_of_their_own(name: str) -> None:
    here, there, ear, out = sides()
    loss = LOSSES[name](out)
    assert isinstance(loss, TwinTensor)
    loss.backward()
    for side in (here, there):
        copy = side.detach().clone().requires_grad_()
        expected = LOSSES[name](copy * 2)
        expected.backward()
        torch.testing.assert_close(side.grad, copy.grad)
    assert len(ear.losses) == 1


def test_the_script_sees_its_own_numbers() -> None:
    here, _, _, out = sides()
    assert out.shape == (6, 3)
    assert type(out.detach()) is Tensor
    assert type(out.argmax(1)) is Tensor
    assert torch.equal(out.detach(), 2 * here.detach())
    assert out.sum().item() == (2 * here).sum().item()
    assert f"{out.mean():.4f}" == f"{(2 * here).mean():.4f}"
    with torch.no_grad():
        assert type(out + 1) is Tensor


def test_structures_of_outputs_are_taken_apart() -> None:
    one, two = (torch.ones(2, requires_grad=True) for _ in range(2))
    made = pair({"a": one * 1, "b": [one * 2, 3]}, {"a": two * 1, "b": [two * 2, 3]}, Ear())
    assert isinstance(made["a"], TwinTensor)
    assert made["b"][1] == 3
    (made["a"] + made["b"][0]).sum().backward()
    assert one.grad is not None
    assert two.grad is not None
    assert one.grad.tolist() == two.grad.tolist() == [3.0, 3.0]


def test_a_given_gradient_and_several_passes() -> None:
    here, there, ear, out = sides((2,))
    out.backward(torch.tensor([1.0, 10.0]), retain_graph=True)
    out.backward(torch.tensor([1.0, 10.0]))
    assert here.grad is not None
    assert there.grad is not None
    assert here.grad.tolist() == there.grad.tolist() == [4.0, 40.0]
    assert len(ear.losses) == 2
