"""What workers and the server of a shard say to each other: heads of messages, of a closed schema.

worker ── PushRequest + update ──> shard.N      answered with PushReply
worker ── PullRequest ───────────> shard.N      answered with ValuesHead + values, or WaitReply
worker <── ValuesHead + values ── values.N      after a WaitReply, once the staleness bound allows
"""

from typing import Annotated

import msgspec

from shoal.core.errors import PayloadError
from shoal.sync.server.shard import PushOutcome

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Name = Annotated[str, msgspec.Meta(max_length=64)]


class PushRequest(msgspec.Struct, frozen=True, tag="push", forbid_unknown_fields=True):
    clock: Count
    weight: float = 1.0


class PullRequest(msgspec.Struct, frozen=True, tag="pull", forbid_unknown_fields=True):
    clock: Count


class PushReply(msgspec.Struct, frozen=True, tag="pushed", forbid_unknown_fields=True):
    outcome: Annotated[str, msgspec.Meta(max_length=16)]


class WaitReply(msgspec.Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    slowest: Annotated[list[Name], msgspec.Meta(max_length=64)]
    """Members that are waited for, or the first of them."""


class ValuesHead(msgspec.Struct, frozen=True, tag="values", forbid_unknown_fields=True):
    clock: Count
    minimum: Count
    version: Count


ShardRequest = PushRequest | PullRequest
ShardReply = PushReply | WaitReply | ValuesHead
encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[ShardRequest] = msgspec.msgpack.Decoder(ShardRequest)
_replies: msgspec.msgpack.Decoder[ShardReply] = msgspec.msgpack.Decoder(ShardReply)


def decode_request(head: bytes, sender: str) -> ShardRequest:
    try:
        return _requests.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{sender} asks a shard for what is no request: {error}") from None


def decode_reply(head: bytes, sender: str) -> ShardReply:
    try:
        return _replies.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"the shard of {sender} answers with what is no reply: {error}") from None


def read_outcome(reply: PushReply, sender: str) -> PushOutcome:
    if reply.outcome not in PushOutcome.__members__:
        raise PayloadError(f"the shard of {sender} says that a push was {reply.outcome!r}, which none can be")
    return PushOutcome[reply.outcome]


def request_port(shard: int) -> str:
    return f"shard.{shard}"


def values_port(shard: int) -> str:
    return f"values.{shard}"
