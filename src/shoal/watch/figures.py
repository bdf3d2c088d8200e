"""How figures and foreign text are written for people: short, with their unit, safe for a terminal."""

from math import isfinite


def count(number: float) -> str:
    """A whole number, shortened from a million on: `15360`, `12.3M`."""
    if not isfinite(number) or abs(number) < 1e6:
        return f"{number:.0f}"
    return _scaled(number / 1e6, "", ("M", "G", "T"))


def size(number: float) -> str:
    """Bytes in decimal units: `34.1 MB`."""
    return f"{number:.0f} B" if abs(number) < 1000 else _scaled(number / 1000, " ", ("kB", "MB", "GB", "TB"))


def value(number: float) -> str:
    """A loss or a metric: `0.4321`, `1.2e-05`, `nan`."""
    plain = number == 0 or 1e-3 <= abs(number) < 1e5
    return f"{number:.4f}" if plain else f"{number:.4g}"


def seconds(number: float) -> str:
    return f"{number:.2f} s" if number < 60 else f"{number // 60:.0f} min {number % 60:.0f} s"


def milliseconds(number: float) -> str:
    """Seconds, as milliseconds without the unit."""
    return f"{number * 1000:.2f}" if number < 0.1 else f"{number * 1000:.0f}"


def clean(text: str) -> str:
    """One line without control characters: what a script wrote must not steer the reader's terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def _scaled(number: float, space: str, units: tuple[str, ...]) -> str:
    rest = list(units)
    while abs(number) >= 999.95 and len(rest) > 1:  # 999.95 would be written as 1000.0
        number /= 1000
        rest.pop(0)
    return f"{number:.1f}{space}{rest[0]}"
