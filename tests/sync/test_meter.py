"""Figures of buckets under a clock of the test's own."""

from collections.abc import Iterator

import pytest
import torch

from shoal.sync import meter as module
from shoal.sync.meter import ExchangeMeter, estimated_norm


class Clock:
    time = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(module, "now", lambda: made.time)
    return made


def test_one_exchange_of_two_buckets(clock: Clock) -> None:
    meter = ExchangeMeter.over([["a"], ["b"]])
    clock.time = 2.0
    meter.left(0, began=1.0, raw=40, sent=10, wire=20)
    clock.time = 5.0
    meter.look(lambda index: index == 0)  # landed between layers
    clock.time = 6.0
    meter.left(1, began=5.5, raw=80, sent=20, wire=40)
    meter.look(lambda index: index == 0)
    clock.time = 7.5
    meter.finished(0, began=7.0, wait=0.0, sent=5, wire=1)
    clock.time = 10.0
    meter.finished(1, began=7.5, wait=1.5, sent=0, wire=2)
    first, second = meter.accounts
    assert (first.encode, first.transfer, first.wait, first.decode) == (1.0, 3.0, 0.0, 0.5)
    assert (second.encode, second.transfer, second.wait, second.decode) == (0.5, 3.0, 1.5, 1.0)
    assert (first.raw, first.sent, first.wire, second.wire) == (40, 15, 21, 42)
    assert meter.span == 6.0  # from 2 to 5 and from 6 to 9
    assert meter.room == 3.5  # from the first one's leaving at 2 to the last one's being full at 5.5


def test_transfers_that_overlap_count_once(clock: Clock) -> None:
    meter = ExchangeMeter.over([["a"], ["b"]])
    meter.left(0, 0.0, 1, 1, 1)
    clock.time = 1.0
    meter.left(1, 1.0, 1, 1, 1)
    clock.time = 4.0
    meter.finished(0, began=1.0, wait=3.0, sent=0, wire=0)
    clock.time = 5.0
    meter.finished(1, began=4.0, wait=1.0, sent=0, wire=0)
    assert [account.transfer for account in meter.accounts] == [4.0, 4.0]
    assert meter.span == 5.0


def test_what_is_finished_again_counts_once(clock: Clock) -> None:
    meter = ExchangeMeter.over([["a"]])
    meter.left(0, 0.0, 1, 1, 1)
    clock.time = 2.0
    meter.finished(0, 1.0, 1.0, 0, 0)
    meter.finished(0, 1.0, 1.0, 0, 0)
    assert meter.accounts[0].wait == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_norms_of_large_tensors_are_estimated(dtype: torch.dtype) -> None:
    values = torch.ones(100_000, dtype=dtype)
    assert estimated_norm(values) == pytest.approx(100_000**0.5, rel=1e-3)
    assert estimated_norm(values[:0]) == 0.0


def test_what_is_not_finite_is_no_figure() -> None:
    meter = ExchangeMeter.over([["a"]])
    meter.weigh(0, torch.tensor([1.0, float("nan")]), None)
    meter.weigh(0, torch.tensor([3.0, 4.0]), torch.tensor([1.0]))
    assert (meter.accounts[0].gradient, meter.accounts[0].residual) == (5.0, 1.0)
