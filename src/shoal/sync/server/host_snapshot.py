"""All that a host of shards remembers, as bytes and arrays: a new replica begins with it.

The fields of `HostedShard` and `ShardState` are read from their classes, so one that is added later is carried too. A
shard's rule and reader are no data: they are made anew, from the request that opened the shard and from the plan's
codec. Which elements have changed is not carried: the replica sends all values once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.server.hosted_shard import HostedShard
from shoal.sync.server.messages import PartShape
from shoal.sync.server.shard import ParameterShard
from shoal.sync.server.shard_codec import CodecReader, FloatReader, read_layout
from shoal.sync.server.shard_state import ShardState
from shoal.sync.server.sum_rounds import DTYPES, OpenSum, SumKey
from shoal.wire.codec import GradientCodec

_HINTS = {**get_type_hints(HostedShard), "shard": ShardState, "reader": list[PartShape] | None}
_HostedState = msgspec.defstruct("_HostedState", [(each.name, _HINTS[each.name]) for each in fields(HostedShard)])


@dataclass
class HostSnapshot:
    """What a `ShardHost` remembers."""

    shards: dict[int, Any] = field(default_factory=dict)
    """Channel -> `HostedShard`, in a snapshot that was taken here."""
    sums: list[OpenSum] = field(default_factory=list)
    generation: int = 0
    """Of the sums."""
    waiting: list[tuple[SumKey, dict[str, int]]] = field(default_factory=list)
    """Who waits for each sum, by the numbers of their requests."""


class SnapshotEncoder:
    """Of one snapshot; `arrays` are copies, because the host goes on changing its own."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def encode(self, state: object) -> bytes:
        return msgspec.msgpack.encode(state, enc_hook=self._hook)

    def _hook(self, found: object) -> object:
        if isinstance(found, ParameterShard):
            return found.state
        if isinstance(found, FloatReader):
            return found.layout and [PartShape(part.name, part.shape) for part in found.layout.parts]
        if isinstance(found, Tensor):
            # as bytes, because numpy has no bfloat16
            return [str(found.dtype).removeprefix("torch."), self._keep(found.view(torch.uint8).numpy())]
        if isinstance(found, np.ndarray | memoryview):
            array = np.asarray(found)
            return [array.dtype.name, self._keep(array)]
        raise NotImplementedError(f"a replica cannot be given a {type(found).__name__}")

    def _keep(self, array: np.ndarray[Any, Any]) -> int:
        self.arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())
        return len(self.arrays) - 1


class SnapshotDecoder:
    """PayloadError: the bytes are no snapshot."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays

    def decode(self, data: bytes, kind: Any) -> Any:
        try:
            return msgspec.msgpack.decode(data, type=kind, dec_hook=self._hook)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadError(f"a server sends its replica what is no state: {error}") from None

    def decode_shards(self, found: Mapping[int, Any], codec: GradientCodec | None = None) -> dict[int, HostedShard]:
        """`codec`: of pushes, by the plan."""
        return {channel: self._decode_shard(each, codec) for channel, each in found.items()}

    def _decode_shard(self, found: Any, codec: GradientCodec | None) -> HostedShard:
        try:
            state = msgspec.convert(found, _HostedState, dec_hook=self._hook)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"a server sends its replica what is no shard: {error}") from None
        facts: dict[str, Any] = {name: getattr(state, name) for name in _HINTS}
        values, parts = facts["shard"].values, facts.pop("reader")
        layout = None if parts is None else read_layout("a server", parts, values.size)
        reader = FloatReader() if codec is None or layout is None else CodecReader(codec, layout)
        hosted = HostedShard.open(facts["opened"], values, reader)
        hosted.shard.state = facts.pop("shard")
        if reader.tells_changes:
            hosted.shard.tell_changes()  # anew: what changed before this version is not known here
        for name, value in facts.items():
            setattr(hosted, name, value)
        return hosted

    def _hook(self, kind: Any, found: Any) -> Any:
        try:
            dtype, place = found
            data = np.frombuffer(self._arrays[place], np.uint8).copy()  # what comes from a socket cannot be written to
            return torch.from_numpy(data).view(DTYPES[dtype]) if kind is Tensor else data.view(np.dtype(dtype))
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise PayloadError(f"a server sends its replica what is no array: {error}") from None
