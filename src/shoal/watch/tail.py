"""Reading a worker's file while it grows: whole lines only, each once.

A line counts when its newline is there: a torn end is left until the rest arrives, or for ever.
"""

from collections.abc import Iterator
from math import nan
from pathlib import Path

import msgspec

from shoal.core.events import AnyEvent

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class Tail:
    """Follows `path` from byte `offset`; the file may not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self) -> Iterator[AnyEvent]:
        """What is new; may be abandoned midway, the next call goes on from there."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                if (event := decode(line)) is not None:
                    yield event


def decode(line: bytes) -> AnyEvent | None:
    """The event on one line, or None if there is none."""
    try:
        return _decoder.decode(line)
    except ValueError:  # msgspec's errors, and text that is not UTF-8
        return _decode_with_gaps(line)


def numbers(values: object) -> object:
    """JSON has no nan and no infinity: both are written as null, and come back as nan."""
    if not isinstance(values, dict):
        return values
    return {name: nan if value is None else value for name, value in values.items()}


def _decode_with_gaps(line: bytes) -> AnyEvent | None:
    # A loss that is no longer a number is what a reader most wants to see: it must not vanish with its line.
    try:
        raw = msgspec.json.decode(line, type=dict[str, object])
        raw |= {field: numbers(raw[field]) for field in ("values", "metrics") if field in raw}
        event: AnyEvent = msgspec.convert(raw, AnyEvent)
        return event
    except ValueError:
        return None
