"""Pushes through codecs: what is sent and what waits are what there was; pulls bring the server's bits."""

import random

import numpy as np
import pytest
import torch
from coded_worker import NAMES, SHAPES, SIZE, CodedServers, CodedWorker, codec_of, values_of

from shoal.sync.server.payloads import CodedPayloads

MEMBERS = ["w0.0", "w1.0"]


def world(codec: str, shards: int = 2, bound: int | None = None) -> tuple[CodedServers, list[CodedWorker]]:
    servers = CodedServers(codec, shards)
    return servers, [CodedWorker(servers, codec, rank, MEMBERS, bound) for rank in range(2)]


@pytest.mark.parametrize(
    "codec", ["topk(0.05)", "randomk(0.1)", "topk(0.05), feedback(off)", "nonzero", "threshold(16)", "significant(0.5)"]
)
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_sent_and_what_waits_are_what_there_was(codec: str, shards: int) -> None:
    """In any order of pushes and pulls, exactly, because all numbers are whole; without feedback it is lost."""
    servers, workers = world(codec, shards)
    chance = random.Random(shards)
    for _ in range(40):
        worker = chance.choice(workers)
        if chance.random() < 0.7:
            assert worker.push(worker.update()) == ["APPLIED"] * shards
        else:
            assert worker.pull()
            assert np.array_equal(worker.values, values_of(servers))
    there_was, found = sum(w.made for w in workers), values_of(servers) + sum(w.waiting for w in workers)
    assert np.array_equal(there_was, found) == ("off" not in codec)


@pytest.mark.parametrize("codec", ["int8", "fp16", "onebit", "int8, feedback(on)"])
def test_pulls_after_dense_pushes_bring_all_values(codec: str) -> None:
    servers, (first, second) = world(codec)
    for worker in (first, second, first):
        worker.push(worker.update())
    assert second.pull()
    assert np.array_equal(second.values, values_of(servers))
    assert servers.down >= 3 * 4 * SIZE  # two that opened, and this one
    size = float(np.abs(first.made + second.made).max())
    assert np.abs(second.values - first.made - second.made).max() <= (2 * size if codec == "onebit" else 1.5)


def test_after_sparse_pushes_a_pull_brings_what_changed_and_nothing_else() -> None:
    servers, (first, second) = world("topk(0.01)")
    first.push(first.update())
    before = servers.down
    assert second.pull()
    brought, before = servers.down - before, servers.down
    assert 0 < brought < 4 * SIZE / 10
    assert second.pull()
    assert servers.down == before, "nothing has changed since"
    assert np.array_equal(second.values, values_of(servers))


def test_with_rounds_of_all_the_bits_do_not_depend_on_who_is_first() -> None:
    found = []
    for order in ((0, 1), (1, 0)):
        servers, workers = world("topk(0.05)", bound=0)
        for _ in range(5):
            ready = [workers[rank].push(workers[rank].update()) and workers[rank].pull() for rank in order]
            assert ready == [[False, True][place] for place in range(2)]
        found.append(values_of(servers))
    assert np.array_equal(*found)


def test_numbers_that_are_not_finite_are_refused_and_leave_what_waits_as_it_was() -> None:
    servers, (first, _) = world("topk(0.05)")
    first.push(first.update())
    waiting, values = first.waiting, values_of(servers)
    bad = [torch.full(shape, float("nan")) for shape in SHAPES]
    assert [first.push(bad) for _ in range(3)] == [["REFUSED"] * 2] * 2 + [["QUARANTINED"] * 2]
    assert np.array_equal(first.waiting, waiting)
    assert np.array_equal(values_of(servers), values)


def test_what_waits_goes_into_a_checkpoint_and_out_again_whatever_the_shards() -> None:
    _, (first, _) = world("topk(0.05)")
    first.push(first.update())
    state = first.payloads.state()
    assert {name: tuple(each.shape) for name, each in state.items()} == {
        f"residual.{name}": shape for name, shape in zip(NAMES[:2], SHAPES[:2], strict=True)
    }
    other = CodedPayloads(codec_of("topk(0.05)"), 0, 0)
    other.open(NAMES, [torch.zeros(shape) for shape in SHAPES], 3)
    other.load_state(state)
    assert all(torch.equal(each, state[name]) for name, each in other.state().items())
    assert bool(state["residual.matrix"].any())
