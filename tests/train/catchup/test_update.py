"""An update written down and made elsewhere comes to the same bits, whatever the optimizer."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from shoal.core.errors import PayloadError
from shoal.train.catchup.update import UnfitError, _gradient, repeat, write
from shoal.train.checkpoint.shard import parse

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], 0.01),
    "rmsprop": lambda p: RMSprop(p, 0.01, centered=True),
    "adagrad": lambda p: Adagrad(p, 0.05),
}


def sparse(like: Tensor, share: float) -> Tensor:
    gradient = torch.randn_like(like)
    gradient[torch.rand_like(like) > share] = 0.0
    gradient.view(-1)[:1] = -0.0
    return gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    mine = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 3)).to(dtype)
    theirs = copy.deepcopy(mine)
    here, there = (OPTIMIZERS[kind](list(model.parameters())) for model in (mine, theirs))
    for step in range(5):
        here.param_groups[0]["lr"] *= 0.9
        for index, parameter in enumerate(mine.parameters()):
            parameter.grad = None if index == step else sparse(parameter, 0.05 if index % 2 else 0.9)
        tensors, texts = parse(write(here, 0))
        here.step()
        repeat([there], tensors, texts)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
            assert b.grad is None
            for name in here.state[a]:
                assert torch.equal(torch.as_tensor(here.state[a][name]), torch.as_tensor(there.state[b][name]))
    assert there.param_groups[0]["lr"] == here.param_groups[0]["lr"]


def test_what_is_mostly_zero_is_small_and_what_is_not_is_written_whole() -> None:
    parameter = nn.Parameter(torch.zeros(100_000))
    optimizer = SGD([parameter], 0.1)
    parameter.grad = torch.zeros(100_000)
    parameter.grad[::1000] = 1.0
    assert len(write(optimizer, 0)) < 2000
    parameter.grad = torch.randn(100_000)
    assert 400_000 < len(write(optimizer, 0)) < 401_000


@pytest.mark.parametrize(("values", "bits"), [(1, 1), (2, 1), (3, 2), (16, 4), (17, 32), (2048, 32)])
def test_few_distinct_numbers_in_each_block_take_few_bits_and_come_back_exactly(values: int, bits: int) -> None:
    """As sums of the signs of several workers, each block with its own means; -0.0 is a number like others."""
    torch.manual_seed(values)
    parameter, other = (nn.Parameter(torch.zeros(7, 14_287)) for _ in range(2))
    rows = torch.stack([torch.randn(values)[torch.arange(2048) % values] for _ in range(49)])
    rows[3][rows[3] == rows[3, 0]] = -0.0
    parameter.grad = rows.view(-1)[: parameter.numel()].view_as(parameter).contiguous()
    data = write(SGD([parameter], 0.1), 0)
    assert abs(len(data) - parameter.numel() * bits / 8) < 4200
    tensors, _ = parse(data)
    again = _gradient(other, 0, tensors)
    assert again is not None
    assert torch.equal(again.view(torch.int32), parameter.grad.view(torch.int32))


@pytest.mark.parametrize(("name", "change"), [
    ("0.codes", lambda codes: codes[:-1]), ("0.codes", lambda codes: codes.fill_(255)),
    ("0.codes", lambda codes: codes.int()), ("0.tables", lambda tables: tables.view(-1)),
    ("0.tables", lambda tables: torch.cat([tables, tables])), ("0.tables", lambda tables: tables[:, :0]),
])  # fmt: skip
def test_codes_that_are_none_are_refused(name: str, change: Callable[[Tensor], Tensor]) -> None:
    parameter = nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.randint(1, 4, (1000,)).float()
    tensors, _ = parse(write(SGD([parameter], 0.1), 0))
    tensors[name] = change(tensors[name].clone())
    with pytest.raises(PayloadError, match=r"codes for 1000|code 3 in an update|tables of shape"):
        _gradient(parameter, 0, tensors)


def test_a_sparse_tensor_is_not_written() -> None:
    parameter = nn.Parameter(torch.zeros(4, 4))
    parameter.grad = torch.zeros(4, 4).to_sparse()
    with pytest.raises(UnfitError, match="layout"):
        write(SGD([parameter], 0.1), 0)
