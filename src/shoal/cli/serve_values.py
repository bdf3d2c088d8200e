"""Values of the options of `shoal serve`: times, sizes and numbers of processes, each with one line that refuses."""

import re

from shoal.core.errors import UsageError
from shoal.core.units import TimeSpan

MOST_PROCESSES = 256
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def read_seconds(text: str, option: str) -> float:
    found = TimeSpan.parse(text).seconds
    if found <= 0:
        raise UsageError(f"{option} {text} is no time; write 100ms or 2s")
    return found


def read_process_range(text: str) -> tuple[int, int]:
    """`4` is 4 to 4, `1:4` is 1 to 4."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and (high or low).isdecimal() and 0 <= int(low) <= int(high or low) <= MOST_PROCESSES):
        raise UsageError(f"--processes {text} is no number of processes; write 4, or 1:4, up to {MOST_PROCESSES}")
    if not int(high or low):
        raise UsageError(f"--processes {text} answers nothing; write 0:1 for one that ends while nobody asks")
    return int(low), int(high or low)


def read_size(text: str | None, option: str) -> int | None:
    """`512MB`, `2GB` or bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise UsageError(f"{option} {text!r} is no size; write 512MB or 2GB")
    return int(float(found[1]) * UNITS[found[2]])
