"""A replica that begins with a snapshot remembers all that the host does, whatever fields are added."""

from typing import Any

import numpy as np
import pytest
import torch

from shoal.core.errors import PayloadError
from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.sync.server.host import ShardHost
from shoal.sync.server.host_snapshot import HostSnapshot, SnapshotDecoder, SnapshotEncoder
from shoal.sync.server.messages import (
    LeaveRoundRequest,
    OpenRequest,
    PartShape,
    PullRequest,
    PushRequest,
    RoundRequest,
    SumRequest,
    encode,
)
from shoal.sync.server.shard_codec import CodecReader
from shoal.sync.trained import TrainedSamples

A, B, C = MEMBERS = ["w0.0", "w1.0", "w2.0"]


def busy_host() -> ShardHost:
    """With rounds that are open, pulls and sums that wait, a lost member, samples, and a rule with slots."""
    host, numbers = ShardHost(lambda *reply: None), iter(range(1, 99))

    def ask(member: str, request: Any, *arrays: np.ndarray) -> None:
        host.handle(member, next(numbers), encode(request), [memoryview(each).cast("B") for each in arrays])

    for channel, bound, rule in ((0, 0, "add"), (1, None, "adagrad"), (2, 1, "add")):
        settings = {"rate": 0.1} if rule == "adagrad" else {}
        for member in MEMBERS:
            ask(member, OpenRequest(channel, rule, settings, bound, 1, MEMBERS), np.arange(5, dtype=np.float32))
        trained = [TrainedSamples((0, 0, 0), [(4, 8)])]
        ask(C, PushRequest(0, 0.5, channel, trained), np.ones(5, np.float32))
        ask(B, PushRequest(0, 0.5, channel, trained, 1), np.full(5, np.nan, np.float32))
        ask(A, PullRequest(3, channel))
        ask(C, LeaveRoundRequest(channel))
    ask(A, RoundRequest(2, 1, 2, [A, B]))
    ask(B, SumRequest(2, 3, 0, 1, [A, B], "bfloat16"), torch.ones(4, dtype=torch.bfloat16).view(torch.uint8).numpy())
    ask(A, OpenRequest(4, "add", {}, None, 2, [A, B]), np.zeros(0, np.float32))
    return host


def plain(found: Any) -> Any:
    """As values that can be compared, down to the attributes of everything."""
    if isinstance(found, torch.Tensor):
        return [str(found.dtype), found.tolist()]
    if isinstance(found, np.ndarray):
        return [found.dtype.name, found.tobytes()]
    if isinstance(found, dict):
        return {str(key): plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple | set):
        return [plain(each) for each in (sorted(found) if isinstance(found, set) else found)]
    if callable(found):
        return None
    if hasattr(found, "__dict__"):
        return {name: plain(value) for name, value in vars(found).items()}
    return found


def restored(host: ShardHost) -> ShardHost:
    encoder = SnapshotEncoder()
    data = encoder.encode(host.take_snapshot())
    decoder = SnapshotDecoder([bytes(array) for array in encoder.arrays])
    snapshot = decoder.decode(data, HostSnapshot)
    snapshot.shards = decoder.decode_shards(snapshot.shards)
    other = ShardHost(lambda *reply: None)
    other.restore(snapshot)
    return other


def test_everything_a_host_remembers_is_in_its_snapshot() -> None:
    host = busy_host()
    other = restored(host)
    assert plain(other) == plain(host)
    assert host._sums.open_count == 1
    assert host._shards[1].shard.state.waiting == {A: 3}


def test_a_shard_of_a_codec_is_read_by_the_same_codec() -> None:
    codec, parts = (
        compose(Plan.parse("server, async, topk(0.5)").codecs, 1),
        [PartShape("a", (2, 3)), PartShape("b", (4,))],
    )
    host, encoder = ShardHost(lambda *reply: None, codec=codec), SnapshotEncoder()
    opens = encode(OpenRequest(0, "add", {}, None, 1, [A]))
    host.handle(A, 1, opens, [memoryview(np.ones(10, np.float32)).cast("B"), encode(parts)])
    data = encoder.encode(host.take_snapshot())
    decoder = SnapshotDecoder(encoder.arrays)
    found = decoder.decode_shards(decoder.decode(data, HostSnapshot).shards, codec)[0]
    assert found.reader.layout == host._shards[0].reader.layout
    assert isinstance(found.reader, CodecReader)
    assert found.shard.changes is not None
    assert found.shard.changes.since(0) is not None
    found.shard.state.version += 1
    found.shard.tell_changes()
    assert found.shard.changes.since(0) is None, "what changed before is not known here"


def test_a_snapshot_does_not_change_with_its_host() -> None:
    host, encoder = busy_host(), SnapshotEncoder()
    encoder.encode(host.take_snapshot())
    before = [array.copy() for array in encoder.arrays]
    for hosted in host._shards.values():
        hosted.shard.state.values += 1
    assert all(np.array_equal(a, b) for a, b in zip(before, encoder.arrays, strict=True))


@pytest.mark.parametrize("damage", ["state", "arrays"])
def test_what_is_no_snapshot_is_refused(damage: str) -> None:
    encoder = SnapshotEncoder()
    data = encoder.encode(busy_host().take_snapshot())
    data, arrays = (data[:-3], encoder.arrays) if damage == "state" else (data, encoder.arrays[:2])
    decoder = SnapshotDecoder(arrays)
    with pytest.raises(PayloadError, match="a server sends its replica what is no"):
        decoder.decode_shards(decoder.decode(data, HostSnapshot).shards)
