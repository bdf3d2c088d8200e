"""Takes typed values out of a TOML table; every complaint says where it is and what to write instead."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shoal.core.errors import UsageError
from shoal.core.suggest import hint, shown
from shoal.core.units import BitRate, TimeSpan, parse_share, write_number

T = TypeVar("T")


class TomlReader:
    """One table of the file, at `where`, that may hold the `known` keys and no others."""

    def __init__(self, table: object, where: str, known: Collection[str]) -> None:
        if not isinstance(table, dict):
            raise UsageError(f"{where} must be a table, not {shown(table)}")
        for key in table:
            if key not in known:
                way_out = hint(key, known, f"keys are {', '.join(known)}")
                raise UsageError(f"{where}: unknown key {shown(key)}; {way_out}")
        self._table, self._where = table, where

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def __getitem__(self, key: str) -> object:
        return self._table[key]

    @contextmanager
    def place(self) -> Iterator[None]:
        """Complaints of the block name this table."""
        try:
            yield
        except UsageError as error:
            begins = str(error).startswith(f"{self._where}:")
            raise UsageError(str(error) if begins else f"{self._where}: {error}") from None

    def integer(self, key: str) -> int | None:
        return self._of(key, int, "a whole number")

    def text(self, key: str) -> str | None:
        return self._of(key, str, "a text")

    def number(self, key: str) -> float | None:
        value = self._table.get(key)
        # Whole numbers count as numbers, as far as a float holds them exactly; True is no number.
        return float(value) if type(value) is int and abs(value) < 2**53 else self._of(key, float, "a number")

    def table(self, key: str) -> dict[str, object]:
        return self._of(key, dict, f"a table; write [{key}.2]") or {}

    def tables(self, key: str) -> list[object]:
        return self._of(key, list, f"a list of tables; write [[{key}]]") or []

    def hosts(self, key: str) -> tuple[int, ...]:
        """One host or a list of them, in order."""
        value = self._table[key]
        return self.numbers(value if isinstance(value, list) else [value], key)

    def numbers(self, value: object, key: str) -> tuple[int, ...]:
        if not isinstance(value, list) or any(type(each) is not int for each in value):
            raise UsageError(f"{self._where}: {key} = {shown(value)} does not name hosts; write numbers, as in [0, 2]")
        return tuple(sorted(value))

    def _of(self, key: str, kind: type[T], words: str) -> T | None:
        value = self._table.get(key)
        if value is None or type(value) is kind:
            return value
        raise UsageError(f"{self._where}: {key} must be {words}, not {shown(value)}")


def parse_link_values(reader: TomlReader) -> dict[str, BitRate | TimeSpan | float]:
    """The values of a link that the table gives."""
    values: dict[str, BitRate | TimeSpan | float] = {}
    with reader.place():
        if "rate" in reader:
            values["rate"] = BitRate.parse(reader["rate"])
        for key in ("delay", "jitter"):
            if key in reader:
                values[key] = TimeSpan.parse(reader[key])
        if "loss" in reader:
            values["loss"] = parse_share(reader["loss"])
        burst = reader.number("burst")
    return values if burst is None else {**values, "burst": burst}


def write_value(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return write_number(value)
    if isinstance(value, int | list):
        return repr(value)  # Python and TOML write whole numbers and lists of them alike
    return f'"{value}"'
