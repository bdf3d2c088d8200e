"""Well-formed messages of a lying member: valid messages whose fields hold what no honest member sends.

Every message passes the decoder of its receiver, so that it reaches the code behind it; bytes that are no messages at
all are another test's. Everything random comes from the generator that is handed in.
"""

import math
import random
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

# The borders of fields, of 32 bits, and of what a double holds exactly.
WHOLE = (0, 1, 2, 3, 7, 255, 4095, 2**16, 2**31 - 1, 2**32 - 1, 2**53 - 1, 2**53, 2**62)
REAL = (0.0, -0.0, 5e-324, 1e-9, 0.5, 1.0, 1e9, math.nan, math.inf, -1.0)
TEXTS = (
    "", "x", "sum", "ring", "owners", "tree", "chain", "star", "butterfly", "gather", "deal", "broadcast", "port",
    "float32", "uint8", "bfloat16",
)  # fmt: skip
ADDRESSES = ("tcp://nohost", "tcp://10.0.0.9", "tcp://10.0.0.9:0", "tcp://:1", "tcp://[::1]:80", "tcp://0.0.0.0:1")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (15360,), (2**31, 2**31), (1,) * 8)


def changed(message: T, chance: random.Random, names: Sequence[str], keep: Sequence[str] = ()) -> T:
    """The same message with one to three fields changed; `names` are ids it may mention, `keep` stay as they are."""
    hints = typing.get_type_hints(type(message))
    fields = [field for field in message.__struct_fields__ if field not in keep]
    for field in chance.sample(fields, min(len(fields), chance.randint(1, 3))):
        value = _other(getattr(message, field), field, hints[field], chance, names)
        message = msgspec.structs.replace(message, **{field: value})
    return message


def _other(value: Any, field: str, hint: Any, chance: random.Random, names: Sequence[str]) -> Any:
    if isinstance(value, msgspec.Struct):
        return changed(value, chance, names)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*WHOLE, value - 1, value + 1, value * 2))
    if isinstance(value, float):
        return chance.choice(REAL)
    if isinstance(value, tuple):
        return chance.choice(SHAPES) if field == "shape" else tuple(chance.sample(names, min(2, len(names))))
    if field == "address":
        return chance.choice(ADDRESSES)
    if field in ("member", "of", "donor"):
        return chance.choice(names)
    return chance.choice(TEXTS)


def is_readable(message: msgspec.Struct, kind: type | types.UnionType) -> bool:
    """Return whether the receiver's decoder accepts the message; others never reach any code."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
    except (msgspec.MsgspecError, OverflowError):
        return False
    return True
