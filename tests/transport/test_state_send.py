"""Items over real sockets: in order, also to one that is in no view; what has come stays when a view ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from forked import soon
from meshes import WAIT, meshes, numbers, total

from shoal.transport.collectives import LOAN, StateReceive, StateSend
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh
from shoal.transport.messages import CHUNK, ChunkHeader, FramePayload, FrameRefused, pack


@contextmanager
def newcomer(seat: int, lender: LinkMesh) -> Iterator[tuple[LinkMesh, BookEntry]]:
    """One that knows the lender, and nobody else."""
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
    assert endpoint.keys is not None
    own = BookEntry(endpoint.address, endpoint.keys.public, "new")
    mesh = LinkMesh("run", {seat: own, lender.rank: lender.loop.book[lender.rank]}, seat, endpoint)
    try:
        yield mesh, own
    finally:
        mesh.close()


def test_items_come_whole_and_in_order_while_the_members_go_on() -> None:
    items = [os.urandom(size) for size in (5 * CHUNK + 17, 1, CHUNK, 300)]
    tensors = numbers(2, 200_000)
    with meshes(2) as made, newcomer(2, made[0]) as (came, own):
        made[0].reform(3, [0, 1])
        made[1].reform(3, [0, 1])
        came.reform(3, [0, 2])
        task = StateReceive(0, 1 << 30, wanted=None, channel=LOAN)
        came.submit(task, number=0)
        made[0].befriend(2, own)
        for number, data in enumerate(items):
            made[0].submit(StateSend(data, [2], number, LOAN), number=0)
            wanted = torch.stack([tensor.double() for tensor in tensors]).sum(0)
            assert all(torch.equal(result.double(), wanted) for result in total(made, tensors))
        assert soon(WAIT, lambda: len(task.items) == len(items))
        assert [bytes(item) for item in task.items] == items
        assert task.taken == sum(map(len, items))
        assert soon(WAIT, lambda: made[0].link(2).out.arrived == 9)
        came.reform(4, [0, 2])
        assert task.done.wait(WAIT)
        assert [bytes(item) for item in task.items] == items, "what has come stays"


def chunk(**other: int) -> tuple[ChunkHeader, FramePayload]:
    payload = pack(np.zeros(other.pop("size", 10), np.uint8), "uint8")
    said = {"phase": 0, "index": 0, "total": 10} | other
    head = ChunkHeader("run", 1, 0, 0, 0, LOAN, 0, "bequest", stamp=0, dtype="uint8", shape=(10,), crc=0, **said)
    return head, payload


@pytest.mark.parametrize("other", [{"phase": 1}, {"index": 1}, {"total": 11}, {"total": 5000, "size": 5000}])
def test_what_does_not_belong_there_is_refused_before_memory_is_taken(other: dict[str, int]) -> None:
    task = StateReceive(0, 1000, wanted=2)
    with pytest.raises(FrameRefused, match="worker 0 may send piece 0 of item 0, of up to 1000"):
        task.arrived(0, *chunk(**other))
    with pytest.raises(FrameRefused, match="worker 3 sends"):
        task.arrived(3, *chunk())
    task.arrived(0, *chunk())
    assert [bytes(item) for item in task.items] == [bytes(10)]
    assert not task.done.is_set()
    task.arrived(0, *chunk(phase=1))
    assert task.done.is_set()
    with pytest.raises(FrameRefused):
        StateSend(b"x", [1]).arrived(1, *chunk())
