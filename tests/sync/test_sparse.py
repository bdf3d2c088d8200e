"""Sparse gradients of peers are checked before a row of theirs is written anywhere."""

import struct

import pytest
import torch
from torch import nn

from shoal.core.errors import PayloadError, ViewEnded
from shoal.sync.exchange.none import NoExchange
from shoal.sync.sparse import _HEAD, SparseMeans, _largest, _pack, _unpack
from shoal.sync.synchronizer import Part

TABLE = torch.zeros(5, 3)


def message(rows: list[int], count: int | None = None, values: int | None = None) -> bytes:
    """As a worker may write it that is not ours."""
    count = len(rows) if count is None else count
    values = 3 * len(rows) if values is None else values
    return _HEAD.pack(True, count) + struct.pack(f"<{len(rows)}q", *rows) + struct.pack(f"<{values}f", *[1.0] * values)


def test_what_was_packed_comes_back() -> None:
    gradient = torch.sparse_coo_tensor([[1, 4]], torch.ones(2, 3), (5, 3), check_invariants=False).coalesce()
    data = _pack(gradient, 0.5)
    found = _unpack(data, TABLE)
    assert found is not None
    assert found[0].tolist() == [1, 4]
    assert torch.equal(found[1], torch.full((2, 3), 0.5))
    assert len(data) <= _largest(TABLE)
    assert _unpack(_pack(None, 1.0), TABLE) is None


@pytest.mark.parametrize(
    "data",
    [
        message([5]),
        message([-1]),
        message([2**40]),
        message([-(2**63), 1]),
        message([3, 1]),
        message([1, 1]),
        message([0, 1, 2, 3, 4, 5]),
        message([1], count=2),
        message([1], count=-1),
        message([1], count=2**60),
        message([1], count=0),
        message([1], values=2),
        message([1], values=4),
        b"",
        b"\1\2",
        b"\7" + message([1])[1:],
        _HEAD.pack(False, 3),
    ],
)
def test_rows_that_are_not_the_parameters_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        _unpack(data, TABLE)


class Gathering(NoExchange):
    """What this worker says, and the same of another; the first gather is cut short by the end of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = True

    def gather(self, data: bytes, limit: int = 0, check: object = None) -> list[bytes]:
        if self.cut:
            self.cut = False
            raise ViewEnded("a member is lost")
        return [data, data]


def test_they_are_part_of_the_steps_transaction() -> None:
    """Nothing is written before the transaction is committed, so that it can be made again or come to nothing."""
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 4])).sum().backward()
    own = table.weight.grad
    means = SparseMeans(Gathering(), Part(["table"], [table.weight], sparse=[0]))
    with pytest.raises(ViewEnded):
        means.gather(empty_handed=False)
    assert not means.is_complete
    means.clear()
    means.gather(empty_handed=False)
    assert means.is_complete
    assert table.weight.grad is own
    means.deliver(0.5)
    assert torch.equal(table.weight.grad.to_dense(), own.to_dense())
    assert means.had == {0}


def test_a_pass_that_came_to_nothing_gathers_nothing() -> None:
    means = SparseMeans(Gathering(), Part(["table"], [TABLE], sparse=[0]))
    means.leave_out()
    means.gather(empty_handed=False)
    assert means.is_complete
