"""Values with units: a bit rate, a time span, a share of frames, the time of an event. Each reads and writes the text
people use.
"""

import re
from decimal import Decimal, InvalidOperation

import msgspec

from shoal.core.errors import UsageError
from shoal.core.suggest import shown

MOST_BITS = 100 * 10**9
MOST_NANOSECONDS = 7 * 24 * 3600 * 10**9
MOST_STEPS = 10**12

# Bounded digits: a long number is refused before any arithmetic.
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,12})?)\s*([a-z]+)", re.ASCII)
_RATES = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}
_TIMES = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_READ_TIMES = {**_TIMES, "min": 60 * 10**9, "h": 3600 * 10**9}


class BitRate(msgspec.Struct, frozen=True, order=True):
    """Ethernet frames per second, in bits; full duplex."""

    bits: int = 0
    """Bit/s; 0 is no limit."""

    def __post_init__(self) -> None:
        if not 0 <= self.bits <= MOST_BITS:
            raise UsageError(f"a rate of {self.bits} bit/s is out of range; write one up to 100gbit")

    @classmethod
    def parse(cls, text: object) -> "BitRate":
        if text == "unlimited":
            return cls()
        rate = cls(_parse(text, _RATES, "rate", "'100mbit'"))
        if not rate.bits:
            raise UsageError("a rate of 0 lets nothing through; write 'unlimited', or cut the link")
        return rate

    def __str__(self) -> str:
        return _write(self.bits, _RATES) if self.bits else "unlimited"


class TimeSpan(msgspec.Struct, frozen=True, order=True):
    """A length of time."""

    nanoseconds: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nanoseconds <= MOST_NANOSECONDS:
            raise UsageError(f"a time of {self.nanoseconds} ns is out of range; write one up to 168h")

    @classmethod
    def parse(cls, text: object) -> "TimeSpan":
        return cls(_parse(text, _READ_TIMES, "time", "'20ms'"))

    @classmethod
    def of(cls, seconds: float) -> "TimeSpan":
        return cls(round(seconds * 1e9))

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 1e9

    def __str__(self) -> str:
        return _write(self.nanoseconds, _TIMES) if self.nanoseconds else "0ms"


class EventTime(msgspec.Struct, frozen=True):
    """When: so long after the start, or when a step is reached. Exactly one of the two is set."""

    after: TimeSpan | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        if (self.after is None) == (self.step is None):
            raise UsageError("a moment is a time or a step; write '30s' or 'step 200'")
        if self.step is not None and not 0 <= self.step <= MOST_STEPS:
            raise UsageError(f"step {self.step} is out of range; write one from 0 to {MOST_STEPS}")

    @classmethod
    def parse(cls, text: object) -> "EventTime":
        step = re.fullmatch(r"step\s+(\d{1,15})", text.strip(), re.ASCII) if isinstance(text, str) else None
        if step:
            return cls(step=int(step[1]))
        try:
            return cls(after=TimeSpan.parse(text))
        except UsageError:
            raise UsageError(f"{shown(text)} is not a moment; write '30s' or 'step 200'") from None

    def __str__(self) -> str:
        return f"step {self.step}" if self.after is None else str(self.after)


def parse_share(value: object) -> float:
    """A probability: a number from 0 to 1, or a text such as '0.5%'."""
    share = _percent(value) if isinstance(value, str) else value
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1:
        return float(share)
    raise UsageError(f"{shown(value)} is not a share; write a number from 0 to 1, or '0.5%'")


def write_share(share: float) -> str:
    """As a percentage that reads back as the same number."""
    percent = (Decimal(repr(share)) * 100).normalize()
    return f"{percent:f}%" if share > 1e-9 else f"{percent:g}%".lower()


def write_number(number: float) -> str:
    """The shortest text that reads back as the same number."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def _percent(text: str) -> float | None:
    if not text.rstrip().endswith("%") or len(text) > 40:
        return None
    try:
        return float(Decimal(text.strip()[:-1].strip()) / 100)
    except InvalidOperation:
        return None


def _parse(text: object, units: dict[str, int], what: str, example: str) -> int:
    found = _QUANTITY.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if not found or found[2] not in units:
        raise UsageError(f"{shown(text)} is not a {what}; write {example} (units: {', '.join(units)})")
    # Decimal: 0.1gbit is exactly 100000000, which floats would miss for some numbers.
    return round(Decimal(found[1]) * units[found[2]])


def _write(number: int, units: dict[str, int]) -> str:
    """In the largest unit that gives 1 or more, with as many digits as it takes to be exact."""
    unit, size = next((unit, size) for unit, size in units.items() if number >= size)
    whole, rest = divmod(number, size)
    digits = str(rest).zfill(len(str(size)) - 1).rstrip("0")
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
