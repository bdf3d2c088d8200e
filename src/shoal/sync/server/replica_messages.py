"""What a server and its replica say to each other; members never see it.

replica ── ReplicaHello ───────────────────> server      it is there, and knows nothing
replica <── StateEntry + snapshot, arrays ── server      all that the server remembers
replica <── RequestEntry + head, arrays ──── server      the next request of a member, before it is answered
replica <── ExpiredEntry ─────────────────── server      the deadline of a step is over: replicas have no clock
replica <── MembersEntry ─────────────────── server      between hosts: what the launcher says of the members
replica <── DeclaredEntry ────────────────── server      between hosts: what will come on a channel
replica ── EntryHeld ──────────────────────> server      answers up to this one may leave
"""

from typing import Annotated

import msgspec

from shoal.core.errors import PayloadError
from shoal.launch.service_channel import ServiceView
from shoal.sync.server.messages import Count, DeclareRequest, Name


class ReplicaHello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    pass


class StateEntry(msgspec.Struct, frozen=True, tag="state", forbid_unknown_fields=True):
    index: Count
    """Requests that the state is made of."""


class RequestEntry(msgspec.Struct, frozen=True, tag="entry", forbid_unknown_fields=True):
    index: Count
    """Counted over all members."""
    member: Name
    number: Annotated[int, msgspec.Meta(ge=0)]
    """Of the member's request."""
    oldest: Annotated[int, msgspec.Meta(ge=0)]
    """The first of its requests that it has no answer to."""


class ExpiredEntry(msgspec.Struct, frozen=True, tag="expiry", forbid_unknown_fields=True):
    index: Count
    channel: Count
    step: Count


class MembersEntry(msgspec.Struct, frozen=True, tag="view", forbid_unknown_fields=True):
    index: Count
    view: ServiceView


class DeclaredEntry(msgspec.Struct, frozen=True, tag="declared", forbid_unknown_fields=True):
    index: Count
    member: Name
    request: DeclareRequest


class EntryHeld(msgspec.Struct, frozen=True, tag="held", forbid_unknown_fields=True):
    index: Count


ReplicaWord = ReplicaHello | StateEntry | RequestEntry | ExpiredEntry | MembersEntry | DeclaredEntry | EntryHeld
encode_word = msgspec.msgpack.Encoder().encode
_words: msgspec.msgpack.Decoder[ReplicaWord] = msgspec.msgpack.Decoder(ReplicaWord)


def decode_word(head: bytes) -> ReplicaWord:
    try:
        return _words.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"a server and its replica say what is no word of theirs: {error}") from None
