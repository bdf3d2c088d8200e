"""`shoal systems`: the systems of the literature, and which of them work here.

The list is one TOML file, docs/systems.toml, which the wheel carries beside this module. It is
data and not prose, so that a test can check every claim of "works" against what shows it.
"""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from shoal.cli.errors import usage_errors
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["planned", "works", "hardware"]

PLACES = (
    Path(__file__).with_name("systems.toml"),  # an installed wheel
    Path(__file__).resolve().parents[3] / "docs" / "systems.toml",  # a source checkout
)


class SystemRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One system, algorithm or method."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    name: Annotated[str, msgspec.Meta(min_length=1)]
    family: Annotated[str, msgspec.Meta(min_length=1)]
    idea: Annotated[str, msgspec.Meta(min_length=1)]
    works_when: Annotated[str, msgspec.Meta(min_length=1)]
    """The criterion a test can check."""
    status: Status
    shows: tuple[str, ...] = ()
    """The evidence that it works: test node ids, or `plan:NAME`."""


class _SystemsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system: tuple[SystemRow, ...]


def systems(
    name: Annotated[str | None, typer.Argument(help="A number, or a part of a name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the systems of the literature and which of them work."""
    with usage_errors():
        everything = read_systems()
        chosen = everything if name is None else find(everything, name)
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(chosen)))
            return
        _show(_table(chosen) if name is None else _entries(chosen))
        if name is None:
            typer.echo(count_line(chosen))


def read_systems(path: Path | None = None) -> tuple[SystemRow, ...]:
    """The systems of `path`, or of the file that belongs to this installation."""
    # The last resort names a place in the error that says what is missing.
    path = path or next((place for place in PLACES if place.is_file()), PLACES[0])
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_SystemsFile).system
    except FileNotFoundError:
        raise UsageError(f"no list of systems at {path}; install shoal again") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a list of systems: {error}") from None


def find(everything: tuple[SystemRow, ...], name: str) -> tuple[SystemRow, ...]:
    """The system with this number, or all that have this text in their name."""
    wanted = name.strip().casefold()
    if wanted.isdecimal():
        found = tuple(s for s in everything if s.number == int(wanted))
    else:
        found = tuple(s for s in everything if wanted and wanted in s.name.casefold())
    if not found:
        near = ", ".join(f"{s.number} {s.name}" for s in nearest(everything, wanted))
        raise UsageError(f"no system {name!r}: not a number or a part of a name; nearest: {near}")
    return found


def nearest(everything: tuple[SystemRow, ...], wanted: str, count: int = 3) -> list[SystemRow]:
    """Return the systems whose name, or one word of it, is most like `wanted`; for a number, the closest numbers."""
    if wanted.isdecimal():
        return sorted(everything, key=lambda s: abs(s.number - int(wanted)))[:count]
    return sorted(everything, key=lambda s: _likeness(s.name.casefold(), wanted), reverse=True)[:count]


def _likeness(name: str, wanted: str) -> float:
    # Names carry authors in brackets, so the whole name alone would hide a word that was merely mistyped.
    return max(difflib.SequenceMatcher(None, part, wanted).ratio() for part in (name, *name.split()))


def count_line(chosen: tuple[SystemRow, ...]) -> str:
    """How many there are, and how many of each status."""
    counts = {status: sum(s.status == status for s in chosen) for status in ("works", "planned", "hardware")}
    return f"{len(chosen)} systems: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def _table(chosen: tuple[SystemRow, ...]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table("#", "name", "family", "status", box=None, pad_edge=False)
    table.columns[0].justify = "right"
    for s in chosen:
        # Text, so that a bracket in a name is never read as markup.
        table.add_row(str(s.number), Text(s.name), Text(s.family), s.status)
    return table


def _entries(chosen: tuple[SystemRow, ...]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for s in chosen:
        grid.add_row(str(s.number), Text(s.name, style="bold"))
        for label, value in (("family", s.family), ("status", s.status), ("idea", s.idea)):
            grid.add_row(label, Text(value))
        grid.add_row("works when", Text(s.works_when))
        for shown in s.shows:
            grid.add_row("shown by", Text(shown, overflow="fold"))
        if s is not chosen[-1]:
            grid.add_row()
    return grid


def _show(what: "RenderableType") -> None:
    from rich.console import Console

    Console().print(what)
