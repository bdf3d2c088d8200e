"""What workers and data servers say to each other: three parts each, of which the first is here.

worker ── BatchRequest | description and bytes of the indices ──▶ server
worker ◀─ BatchAnswer  | description and bytes of the batch ───── server
"""

from typing import Annotated, Literal

import msgspec

from shoal.data.turn import PassKey

LARGEST_HEAD = 64 << 10
LONGEST_TEXT = 16 << 10
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class BatchRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Prepare one batch. Asked twice, a server prepares it twice, alike."""

    number: Number
    """Of the worker's requests; the answer has it too."""
    loader: Number
    """Which of the script's joined loaders, in the order of `run.join`."""
    seed: int
    epoch: int
    turn: int
    """Number of the pass within its epoch."""
    items: int
    """Length of the worker's dataset; -1 if it has none."""

    @property
    def key(self) -> PassKey:
        return PassKey(self.seed, self.epoch, self.turn)


class BatchAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A batch, or why there is none."""

    number: Number
    seconds: float = 0.0
    """That it took to prepare."""
    outcome: Literal["batch", "raised", "refused", "unknown"] = "batch"
    """`raised`: by dataset or `collate_fn`; `refused`: it cannot be sent; `unknown`: the server has no such loader."""
    sample: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """The index whose sample raised."""
    error: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The exception's type."""
    text: Text = ""
    trace: Text = ""


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(BatchRequest)
_answers = msgspec.msgpack.Decoder(BatchAnswer)


def encode_head(head: BatchRequest | BatchAnswer) -> bytes:
    return _encoder.encode(head)


def decode_request(head: bytes | memoryview) -> BatchRequest:
    """Raise msgspec.MsgspecError if it is none."""
    return _requests.decode(head)


def decode_answer(head: bytes | memoryview) -> BatchAnswer:
    """Raise msgspec.MsgspecError if it is none."""
    return _answers.decode(head)
