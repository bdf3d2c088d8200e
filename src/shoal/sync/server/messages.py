"""What workers and the server of a shard say to each other: heads of messages, of a closed schema.

worker ── PushRequest + update ──> answered with PushReply
worker ── PullRequest ───────────> answered with ValuesHead + values; if the staleness bound does not allow it yet, with
                                   WaitReply at once, and with the values later

A server process (`host.py`) has a shard for each join, told apart by `channel`. It also takes:

worker ── OpenRequest + values ──> the first one's values are those of the shard    answered with RoundReply + values
                                   with a codec also what lies in it (`PartShape`), as a second array
worker ── RoundRequest ──────────> the members of a view begin a round              answered with RoundReply + values
worker ── LeaveRoundRequest ─────> it pushes no more in this round             answered with HeardReply
worker ── SumRequest + tensor ───> answered with SumReply + sum, once all members have sent theirs
worker ── WatchRequest ──────────> answered with HeardReply once there are so many updates, or it watches anew
worker ── WhoRequest ────────────> whom a request waits for; answered with WaitReply, if it waits

Of a table of rows (`hosted_table.py`) pulls name the rows they want, and pushes the rows they change:

worker ── PullRequest + rows ────────> answered with ValuesHead + values of these rows
worker ── PushRequest + rows, values ─> answered with PushReply
worker ── ReadRowsRequest ───────────> a block of rows for a checkpoint     answered with RowsHead + rows, values, slots
worker ── LoadRowsRequest + the same > a block of a checkpoint              answered with HeardReply

Between hosts (`link_server.py`) the run's own workers say of each channel what will come, before anything may:

worker ── DeclareRequest ────────> sizes of arrays, which nobody's may exceed
"""

from typing import Annotated

import msgspec

from shoal.core.errors import PayloadError
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.trained import TrainedSamples

CODED, PARTS, ROWS = "coded", "parts", "rows"
"""In the place of a type, in a declaration: bytes of a codec, so many at most; what lies in a shard, in bytes; bytes of
rows of a table in one request, so many at most."""
# limits stand in the schema, so a message that exceeds one is refused while it is decoded
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Name = Annotated[str, msgspec.Meta(max_length=64)]
Trained = Annotated[list[TrainedSamples], msgspec.Meta(max_length=4096)]
Members = Annotated[list[Name], msgspec.Meta(max_length=4096)]


class PartShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of a piece of a shard, for codecs."""

    name: Annotated[str, msgspec.Meta(max_length=1024)]
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**40)], ...], msgspec.Meta(max_length=16)]


class PushRequest(msgspec.Struct, frozen=True, tag="push", forbid_unknown_fields=True):
    clock: Count
    weight: float = 1.0
    channel: Count = 0
    trained: Trained = []
    """Leased samples that the step was made of."""
    version: Count | None = None
    """Updates that it was made on; with it, it counts the less the staler it is."""
    is_finite: bool = True
    """False: no codec carries this update, so nothing comes with it."""
    among: Members = []
    """The workers of a host whose changes are in it, where hosts push together."""


class PullRequest(msgspec.Struct, frozen=True, tag="pull", forbid_unknown_fields=True):
    clock: Count
    channel: Count = 0
    held: Count | None = None
    """Updates in the values that the member has: what has not changed since need not come. None: all is to come."""


class StepDeadline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a step is taken without all members (`deadline_shard.py`)."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    """After the first push of a step."""
    backups: Count = 0
    """Members that are not waited for even before."""
    adds: bool = False
    """Whether a late push counts in the step that is open when it comes; else it counts for nothing."""


class TableShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of a table that one server keeps, and what they are before anybody has changed them."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    """Of the whole table; this server has rows `first`, `first + stride`, …"""
    width: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    """Numbers of a row."""
    first: Annotated[int, msgspec.Meta(ge=0, le=255)]
    stride: Annotated[int, msgspec.Meta(ge=1, le=256)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    scale: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    """Standard deviation of the first values."""


class OpenRequest(msgspec.Struct, frozen=True, tag="open", forbid_unknown_fields=True):
    channel: Count
    rule: Name
    settings: Annotated[dict[Name, float], msgspec.Meta(max_length=8)]
    bound: Count | None
    generation: Count
    members: Members
    deadline: StepDeadline | None = None
    """With bound 0."""
    table: TableShape | None = None
    """Of a table of rows; then no values come with this."""
    by_host: bool = False
    """Whether the workers of a host push together (`clock_names.py`)."""


class RoundRequest(msgspec.Struct, frozen=True, tag="round", forbid_unknown_fields=True):
    channel: Count
    round: Count
    """The round that begins; one that has begun already only tells the server who the members are."""
    generation: Count
    """Of the view: the newest view counts."""
    members: Members
    values: bool = True
    """Whether the values that the round began with are to come."""


class LeaveRoundRequest(msgspec.Struct, frozen=True, tag="leave", forbid_unknown_fields=True):
    """This member pushes no more in this round: nobody waits for its clock."""

    channel: Count


class SumRequest(msgspec.Struct, frozen=True, tag="sum", forbid_unknown_fields=True):
    generation: Count
    channel: Count
    index: Count
    number: Count
    members: Members
    dtype: Name


class WatchRequest(msgspec.Struct, frozen=True, tag="watch", forbid_unknown_fields=True):
    """Tell this member when its values have grown stale (`speculative_steps.py`)."""

    version: Count
    """Updates in the shard from which on it wants to know."""
    channel: Count = 0


class WhoRequest(msgspec.Struct, frozen=True, tag="who", forbid_unknown_fields=True):
    number: Count
    """Of a request of this member."""
    channel: Count = 0


class ReadRowsRequest(msgspec.Struct, frozen=True, tag="read", forbid_unknown_fields=True):
    """The rows that have values of their own, from place `start` to before `stop` of this server's."""

    channel: Count
    start: Count
    stop: Count


class LoadRowsRequest(msgspec.Struct, frozen=True, tag="load", forbid_unknown_fields=True):
    """Give rows these values; before the first push."""

    channel: Count


class TensorSize(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dtype: Name
    size: Annotated[int, msgspec.Meta(ge=0, le=2**34)]
    """Bytes."""


class DeclareRequest(msgspec.Struct, frozen=True, tag="declare", forbid_unknown_fields=True):
    """The arrays of a channel, by index: of a sum's tensors, or the one of a shard."""

    channel: Annotated[int, msgspec.Meta(ge=0, le=199)]
    tensors: Annotated[tuple[TensorSize, ...], msgspec.Meta(max_length=1024)]


class PushReply(msgspec.Struct, frozen=True, tag="pushed", forbid_unknown_fields=True):
    outcome: Annotated[str, msgspec.Meta(max_length=16)]


class WaitReply(msgspec.Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    slowest: Annotated[list[Name], msgspec.Meta(max_length=64)]
    """Members that are waited for, or the first of them."""


class ValuesHead(msgspec.Struct, frozen=True, tag="values", forbid_unknown_fields=True):
    clock: Count
    minimum: Count
    version: Count
    changed: Count | None = None
    """Elements that come, with their places (`changes.py`); None: all values come."""


class RoundReply(msgspec.Struct, frozen=True, tag="begun", forbid_unknown_fields=True):
    round: Count
    clock: Count
    """Of the member that asked."""
    counted: Annotated[dict[Name, Count], msgspec.Meta(max_length=4096)]
    """Of members that were lost in the round before: how many of their pushes in it count."""
    trained: Annotated[dict[Name, list[TrainedSamples]], msgspec.Meta(max_length=4096)] = {}
    """The leased samples of those pushes."""
    version: Count = 0
    """Updates in the values."""


class RowsHead(msgspec.Struct, frozen=True, tag="rows", forbid_unknown_fields=True):
    next: Count
    """The place to read on from."""


class SumReply(msgspec.Struct, frozen=True, tag="summed", forbid_unknown_fields=True):
    pass


class HeardReply(msgspec.Struct, frozen=True, tag="heard", forbid_unknown_fields=True):
    pass


class TakenOverReply(msgspec.Struct, frozen=True, tag="taken", forbid_unknown_fields=True):
    """Between hosts: the process that sends this answers for its server from now on (`link_replica.py`)."""

    term: Annotated[int, msgspec.Meta(ge=1)]


class FailedReply(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(max_length=1024)]


TableRequest = ReadRowsRequest | LoadRowsRequest
OpenShardRequest = RoundRequest | LeaveRoundRequest | PushRequest | PullRequest | WatchRequest | TableRequest
"""What a member asks of a shard that is open."""
ShardRequest = OpenShardRequest | OpenRequest | SumRequest | WhoRequest
ShardAnswer = PushReply | WaitReply | ValuesHead | RoundReply | RowsHead | SumReply | HeardReply | FailedReply
ShardReply = ShardAnswer | TakenOverReply
encode = msgspec.msgpack.Encoder().encode
ShardParts = Annotated[list[PartShape], msgspec.Meta(max_length=1 << 16)]
"""What lies in a shard, one after the other: for codecs. An array of its own, because heads of messages are short."""
_parts: msgspec.msgpack.Decoder[list[PartShape]] = msgspec.msgpack.Decoder(ShardParts)
_requests: msgspec.msgpack.Decoder[ShardRequest] = msgspec.msgpack.Decoder(ShardRequest)
_declarations: msgspec.msgpack.Decoder[DeclareRequest] = msgspec.msgpack.Decoder(DeclareRequest)
_replies: msgspec.msgpack.Decoder[ShardReply] = msgspec.msgpack.Decoder(ShardReply)


def decode_request(head: bytes, sender: str) -> ShardRequest:
    try:
        return _requests.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{sender} asks a shard for what is no request: {error}") from None


def decode_declaration(head: bytes, sender: str) -> DeclareRequest:
    try:
        return _declarations.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{sender} declares what is no channel: {error}") from None


def decode_parts(data: bytes, sender: str) -> list[PartShape]:
    try:
        return _parts.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{sender} opens a shard of what are no parts: {error}") from None


def decode_reply(head: bytes, sender: str) -> ShardReply:
    try:
        return _replies.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"the shard of {sender} answers with what is no reply: {error}") from None


def read_outcome(reply: PushReply, sender: str) -> PushOutcome:
    if reply.outcome not in PushOutcome.__members__:
        raise PayloadError(f"the shard of {sender} says that a push was {reply.outcome!r}, which none can be")
    return PushOutcome[reply.outcome]
