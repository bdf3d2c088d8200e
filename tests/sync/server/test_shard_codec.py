"""What a worker sends for a codec is checked before it is decoded, and refused in one line."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from coded_worker import CodedServers, CodedWorker, codec_of

from shoal.launch.service_channel import ServiceView
from shoal.sync.server.cut import ShardCut, ShardPiece
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import (
    DeclareRequest,
    FailedReply,
    OpenRequest,
    PartShape,
    PushRequest,
    TensorSize,
    encode,
)
from shoal.sync.server.request_guard import RequestGuard
from shoal.sync.server.shard_codec import CodecReader, shape_shard
from shoal.wire.layout import FlatLayout

A, SIZE = "w0.0", 64


def opened(parts: list[PartShape] | bytes, codec: str | None = "topk(0.1)") -> Any:
    """What a server says to one who opens a shard of 64 elements."""
    said: list[Any] = []
    host = ShardHost(lambda member, number, reply, arrays: said.append(reply), codec=codec and codec_of(codec))
    data = parts if isinstance(parts, bytes) else encode(parts)
    arrays = [np.zeros(SIZE, np.float32).data, data] if parts else [np.zeros(SIZE, np.float32).data]
    host.handle(A, 1, encode(OpenRequest(0, "add", {}, None, 1, [A])), arrays)
    return said[-1]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([PartShape("w", (8, 9))], r"a part of shape \(8, 9\) in a shard of 64"),
        ([PartShape("w", (8, 4))], "parts of 32 elements for a shard of 64"),
        ([PartShape("w", (2**40, 2**40, 0))] * 2, "parts of 0 elements"),
        (b"\xc1", "what are no parts"),
        ([], "opens a shard with 1 arrays where the plan has a codec"),
    ],
)
def test_a_layout_that_is_none_is_refused(parts: Any, why: str) -> None:
    reply = opened(parts)
    assert isinstance(reply, FailedReply)
    assert re.search(why, reply.text), reply.text


def test_parts_without_a_codec_are_refused() -> None:
    reply = opened([PartShape("w", (8, 8))], codec=None)
    assert "where the plan has no codec" in reply.text


@pytest.mark.parametrize("spoil", ["empty", "cut", "long", "foreign", "two", "not finite", "flag and bytes"])
def test_a_payload_that_is_none_is_refused_and_changes_nothing(spoil: str) -> None:
    servers = CodedServers("int8", 1)
    worker = CodedWorker(servers, "int8", 0, [A], None)
    (push,) = worker.payloads.pack(worker.update(), 1.0)
    data = bytearray(push.arrays[0])
    arrays: list[Any] = [data]
    match spoil:
        case "empty":
            arrays = [b""]
        case "cut":
            arrays = [data[:-1]]
        case "long":
            arrays = [data + bytes(64)]
        case "foreign":
            data[1] ^= 0xFF
        case "two":
            arrays = [data, data]
        case "not finite":
            # the first scale of a block
            data[32:36] = np.float32(np.inf).tobytes()
    reply, _ = servers.ask(A, 0, PushRequest(0, is_finite=spoil != "flag and bytes"), arrays)
    shard = servers.hosts[0]._shards[0].shard
    assert isinstance(reply, FailedReply), reply
    assert shard.state.clocks == {A: 0}
    assert not shard.state.values.any()


def test_between_hosts_a_payload_is_as_long_as_its_codec_makes_it() -> None:
    """The guard knows the sizes before anything is decoded."""
    said: list[Any] = []
    codec = codec_of("topk(0.1)")
    parts = encode([PartShape("w", (8, 8))])
    host = ShardHost(lambda member, number, reply, arrays: said.append(reply), RequestGuard(), codec=codec)
    host.follow(ServiceView(generation=1, members=(A,)))
    most = codec.max_bytes(FlatLayout.of([("w", (8, 8))]))
    sizes = (TensorSize("float32", 4 * SIZE), TensorSize("coded", most), TensorSize("parts", len(parts)))
    host.declare(A, DeclareRequest(0, sizes))
    values = np.zeros(SIZE, np.float32).data
    for number, arrays in enumerate(([values, parts[:-1]], [values], [values, parts])):
        host.handle(A, number, encode(OpenRequest(0, "add", {}, None, 1, [A])), arrays)
    assert [isinstance(reply, FailedReply) for reply in said] == [True, True, False]
    host.handle(A, 9, encode(PushRequest(0)), [bytes(most + 1)])
    assert f"pushes [{most + 1}] bytes to channel 0, whose codec makes 1 to {most}" in said[-1].text
    host.handle(A, 10, encode(PushRequest(0, is_finite=False)), [])
    assert said[-1].outcome == "REFUSED"


def test_a_part_of_a_matrix_stays_a_matrix_and_of_a_vector_a_vector() -> None:
    cut = ShardCut((ShardPiece(0, 0, 12), ShardPiece(1, 5, 9), ShardPiece(2, 0, 3)))
    assert shape_shard(cut, ["w", "v", "b"], [(4, 6), (9,), (3,)]) == [
        PartShape("w[0:12]", (1, 12)),
        PartShape("v[5:9]", (4,)),
        PartShape("b", (3,)),
    ]


def test_only_codecs_that_leave_elements_out_let_pulls_leave_them_out() -> None:
    layout = FlatLayout.of([("w", (8, 8))])
    sparse = {
        text: CodecReader(codec_of(text), layout).tells_changes for text in ("topk(0.1)", "nonzero", "int8", "fp16")
    }
    assert sparse == {"topk(0.1)": True, "nonzero": True, "int8": False, "fp16": False}
    assert torch.equal(layout_values(codec_of("nonzero"), layout), torch.arange(64.0))


def layout_values(codec: Any, layout: FlatLayout) -> torch.Tensor:
    payload, _ = codec.encode(torch.arange(64.0), layout)
    return torch.from_numpy(CodecReader(codec, layout).read(A, [payload.numpy()], True))
