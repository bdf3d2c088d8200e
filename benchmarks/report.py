"""A table that prints its rows as they come and ends as a dated Markdown and JSON report."""

import datetime
import json
import platform
import sys
from pathlib import Path

import torch


class Table:
    """Rows under named columns."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.rows: list[list[str]] = []
        self._print(columns)

    def add(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])
        self._print(self.rows[-1])

    def _print(self, cells: tuple[str, ...] | list[str]) -> None:
        print("  ".join(f"{cell:<20}" if i > 4 else f"{cell:<11}" for i, cell in enumerate(cells)), flush=True)

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine_line() -> str:
    """What the figures were measured on."""
    import os

    from shoal.core.record import machine

    facts = machine()
    return (
        f"Measured on {facts['cores']} cores ({facts['processor']}), {facts['system']}, "
        f"Python {platform.python_version()}, torch {torch.__version__}; load average before {os.getloadavg()[0]:.1f}."
    )


def command_line() -> str:
    """What was typed, without paths: where data lay is nobody's business."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *without_paths(sys.argv[1:])])


def without_paths(words: list[str]) -> list[str]:
    return ["DIR" if before in ("--data", "--out") else word for before, word in zip(["", *words], words, strict=False)]


def write_report(folder: Path, name: str, title: str, notes: list[str], table: Table) -> None:
    """Write `<date>-<name>.md` and `.json`, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{datetime.date.today():%Y-%m-%d}-{name}"
    command = command_line()
    text = "\n\n".join([f"# {title}", f"    {command}", *notes, table.markdown()])
    stem.with_suffix(".md").write_text(f"{text}\n")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    stem.with_suffix(".json").write_text(
        json.dumps({"command": command, "notes": notes, "rows": rows}, indent=1) + "\n"
    )
    print(f"written: {stem.with_suffix('.md')}")
