"""What a server and its replicas say to each other, over one connection that the replica makes.

    replica ── ReplicaNews ────────────> server     it lives, what it has loaded; several times a second
            <── WantedPrograms ──────────            what to hold; the answer to every ReplicaNews
            ── AskProgram(at) ───────────>           a piece of a program that it has not
            <── ProgramPiece ────────────
            <── BatchPiece … ────────────            a batch to compute, in pieces
            ── AnswerPiece … ────────────>           its outputs, or why there are none
            <── RefuseReplica ───────────            it must end

A message is one msgpack struct and one frame of bytes. Pieces keep every message small, so that no peer can make the
other take memory before it has said for what. Tensors travel as the inputs of the Open Inference Protocol's binary
form, whose decoder checks every size.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from shoal.serve.errors import BodyTooLarge, RequestError
from shoal.serve.protocol import MOST_TENSORS, decode_request, octets
from shoal.serve.tensors import Tensors, TensorSpec, datatype_of

PIECE = 64 << 10
"""Bytes of a piece."""
# Twice a piece: room for the struct beside it.
LARGEST_MESSAGE = 128 << 10
LARGEST_BATCH = 1 << 30
"""Bytes of the tensors of one batch, one way."""
HEAD = 4
"""Bytes before the JSON of tensors, which say how long that is."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
Words = Annotated[str, msgspec.Meta(max_length=500)]


class WireSpec(msgspec.Struct, frozen=True, array_like=True):
    """A TensorSpec."""

    name: Name
    datatype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=16)]


class HeldProgram(msgspec.Struct, frozen=True):
    """A program that a replica can be asked with, or why it cannot."""

    serial: Count
    inputs: Annotated[tuple[WireSpec, ...], msgspec.Meta(max_length=MOST_TENSORS)] = ()
    outputs: Annotated[tuple[WireSpec, ...], msgspec.Meta(max_length=MOST_TENSORS)] = ()
    error: Words = ""


class ReplicaNews(msgspec.Struct, frozen=True, tag=True):
    name: Name
    version: Name
    slots: Annotated[int, msgspec.Meta(ge=1, le=256)]
    """Batches that it computes at the same time."""
    held: Annotated[tuple[HeldProgram, ...], msgspec.Meta(max_length=256)] = ()


class AskProgram(msgspec.Struct, frozen=True, tag=True):
    serial: Count
    at: Count


class AnswerPiece(msgspec.Struct, frozen=True, tag=True):
    batch: Count
    at: Count
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_BATCH)]
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    error: Words = ""


class WantedProgram(msgspec.Struct, frozen=True):
    """`file` is its name, whose ending says what reads it."""

    serial: Count
    file: Name
    size: Count
    digest: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]


class WantedPrograms(msgspec.Struct, frozen=True, tag=True):
    programs: Annotated[tuple[WantedProgram, ...], msgspec.Meta(max_length=256)] = ()


class ProgramPiece(msgspec.Struct, frozen=True, tag=True):
    serial: Count
    at: Count


class BatchPiece(msgspec.Struct, frozen=True, tag=True):
    batch: Count
    serial: Count
    at: Count
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_BATCH)]


class RefuseReplica(msgspec.Struct, frozen=True, tag=True):
    reason: Words


ReplicaWord = ReplicaNews | AskProgram | AnswerPiece
ServerWord = WantedPrograms | ProgramPiece | BatchPiece | RefuseReplica
encode = msgspec.msgpack.Encoder().encode
decode_replica_word: msgspec.msgpack.Decoder[ReplicaWord] = msgspec.msgpack.Decoder(ReplicaWord)
decode_server_word: msgspec.msgpack.Decoder[ServerWord] = msgspec.msgpack.Decoder(ServerWord)


class PieceCollector:
    """Puts pieces of one thing together, which come in order and whose size is known from the first."""

    def __init__(self, size: int) -> None:
        self.size, self._data = size, bytearray()

    def add(self, at: int, size: int, piece: bytes) -> bool:
        """Whether that was the last; ValueError for a piece that does not follow the one before."""
        if (at, size) != (len(self._data), self.size) or len(self._data) + len(piece) > size or not (piece or not size):
            raise ValueError(f"a piece of {len(piece)} bytes at {at} of {size} does not follow {len(self._data)}")
        self._data += piece
        return len(self._data) == size

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def cut_pieces(data: bytes) -> list[tuple[int, bytes]]:
    """Where each begins, and its bytes; of nothing one empty piece."""
    return [(at, data[at : at + PIECE]) for at in range(0, max(1, len(data)), PIECE)]


def pack_tensors(tensors: Tensors) -> bytes:
    told, tail = [], []
    for name, array in tensors.items():
        tail.append(octets(array))
        sizes = {"binary_data_size": len(tail[-1])}
        told.append({"name": name, "datatype": datatype_of(array), "shape": list(array.shape), "parameters": sizes})
    head = msgspec.json.encode({"inputs": told})
    packed = b"".join([len(head).to_bytes(HEAD, "little"), head, *tail])
    if len(packed) > LARGEST_BATCH:
        raise BodyTooLarge(f"a batch of {len(packed)} bytes; {LARGEST_BATCH} is the most; lower --batch")
    return packed


def unpack_tensors(data: bytes) -> Tensors:
    """RequestError says what is wrong with them."""
    if len(data) < HEAD:
        raise RequestError(f"{len(data)} bytes are no tensors")
    return decode_request(data[HEAD:], int.from_bytes(data[:HEAD], "little"))[1]


def specs_to_wire(specs: Sequence[TensorSpec]) -> tuple[WireSpec, ...]:
    return tuple(WireSpec(each.name, each.datatype, each.shape) for each in specs)


def specs_of_wire(specs: Sequence[WireSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(each.name, each.datatype, each.shape) for each in specs)
