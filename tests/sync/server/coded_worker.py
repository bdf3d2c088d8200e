"""Workers that push through a codec to a host in the same process, and pull, by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import OpenRequest, PullRequest, PushReply, PushRequest, RoundReply, ValuesHead, encode
from shoal.sync.server.payloads import CodedPayloads
from shoal.wire.codec import GradientCodec

NAMES, SHAPES = ["embedding", "matrix", "bias"], [(300, 16), (40, 50), (16,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


def codec_of(text: str, workers: int = 2) -> GradientCodec:
    codec = compose(Plan.parse(text).codecs, workers)
    assert codec is not None
    return codec


class CodedServers:
    """Several hosts, and the bytes of all replies."""

    def __init__(self, codec: str, shards: int) -> None:
        self.replies: dict[tuple[str, int], list[tuple[Any, list[memoryview]]]] = {}
        self.down = 0
        self.hosts = [ShardHost(self._note, codec=codec_of(codec)) for _ in range(shards)]
        self._number = 0

    def _note(self, member: str, number: int, reply: Any, arrays: Sequence[Any]) -> None:
        copies = [memoryview(np.array(array)).cast("B") for array in arrays]
        self.down += sum(each.nbytes for each in copies)
        self.replies.setdefault((member, number), []).append((reply, copies))

    def ask(self, member: str, server: int, request: Any, arrays: Sequence[Any] = ()) -> tuple[Any, list[memoryview]]:
        self._number += 1
        data = [memoryview(np.array(bytearray(array), np.uint8)) for array in arrays]
        self.hosts[server].handle(member, self._number, encode(request), data)
        return self.replies[member, self._number][-1]


class CodedWorker:
    """Its updates are whole numbers; `made` is their sum, by its weights."""

    def __init__(self, servers: CodedServers, codec: str, rank: int, members: list[str], bound: int | None) -> None:
        self.servers, self.member, self.clock = servers, members[rank], 0
        self.payloads = CodedPayloads(codec_of(codec), seed=3, rank=rank)
        self.payloads.open(NAMES, [torch.zeros(shape) for shape in SHAPES], len(servers.hosts))
        self.made, self.up = np.zeros(SIZE), 0
        self.chance = torch.Generator().manual_seed(rank)
        values = self.payloads.copy_values([torch.zeros(shape) for shape in SHAPES])
        for server in range(len(servers.hosts)):
            request = OpenRequest(0, "add", {}, bound, 1, members)
            reply, arrays = servers.ask(self.member, server, request, values[server])
            assert isinstance(reply, RoundReply), reply
            self.payloads.take_all(server, reply.version, arrays)

    def update(self) -> list[torch.Tensor]:
        return [torch.randint(-50, 50, shape, generator=self.chance).float() for shape in SHAPES]

    def push(self, updates: list[torch.Tensor], weight: float = 0.5) -> list[str]:
        self.made += weight * np.concatenate([each.numpy().ravel() for each in updates])
        found = []
        for server, push in enumerate(self.payloads.pack(updates, weight)):
            self.up += sum(memoryview(array).nbytes for array in push.arrays)
            request = PushRequest(self.clock, push.weight, 0, is_finite=push.is_finite)
            reply, _ = self.servers.ask(self.member, server, request, push.arrays)
            assert isinstance(reply, PushReply), reply
            found.append(reply.outcome)
        self.clock += 1
        return found

    def pull(self) -> bool:
        """Whether it need not wait."""
        for server in range(len(self.servers.hosts)):
            reply, arrays = self.servers.ask(
                self.member, server, PullRequest(self.clock, 0, self.payloads.held(server))
            )
            if not isinstance(reply, ValuesHead):
                return False
            self.payloads.take(server, reply, arrays)
        return True

    @property
    def values(self) -> np.ndarray:
        """As far as it knows."""
        return np.concatenate(self.payloads.flat)

    @property
    def waiting(self) -> np.ndarray:
        """What its codec has left out so far."""
        state = self.payloads.state()
        kept = [state.get(f"residual.{name}", torch.zeros(shape)) for name, shape in zip(NAMES, SHAPES, strict=True)]
        return np.concatenate([each.numpy().ravel() for each in kept])


def values_of(servers: CodedServers) -> np.ndarray:
    """What the shards hold, in the order of parameters."""
    flat = [np.zeros(int(np.prod(shape)), np.float32) for shape in SHAPES]
    reader = CodedPayloads(codec_of("nonzero"), 0, 0)
    reader.open(NAMES, [torch.zeros(shape) for shape in SHAPES], len(servers.hosts))
    for cut, host in zip(reader.cuts, servers.hosts, strict=True):
        cut.unpack(host._shards[0].shard.state.values, flat)
    return np.concatenate(flat)
