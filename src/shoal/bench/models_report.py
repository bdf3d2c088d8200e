"""The figures of models as text: one table in Markdown, one object in JSON, files in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.bench.models import LARGE, ModelFigures
from shoal.bench.scatter import draw_scatters

COLUMNS = (  # short, so that 80 columns hold them; explain() spells them out
    "model",
    "data",
    "top-1 %",
    "Mpar",
    "MFLOP",
    "MiB@1",
    "MiB@64",
    "ms@1",
    "ms@64",
    "%/Mpar",
)


def cells(row: ModelFigures) -> list[str]:
    """A row as it is shown, in the order of COLUMNS."""
    return [
        row.model,
        row.data,
        "-" if row.accuracy is None else f"{100 * row.accuracy:.2f}",
        f"{row.parameters / 1e6:.3f}",
        f"{row.flops / 1e6:.3f}",
        f"{row.memory_1 / 2**20:.2f}",
        f"{row.memory_64 / 2**20:.2f}",
        f"{1e3 * row.seconds_1:.2f}",
        f"{1e3 * row.seconds_64:.2f}",
        "-" if row.density is None else f"{row.density:.0f}",
    ]


def explain(rows: Sequence[ModelFigures], epochs: int, limit: int | None) -> str:
    """How the figures came about, in one paragraph."""
    threads = ", ".join(sorted({str(row.threads) for row in rows}))
    amount = "all training samples" if limit is None else f"at most {limit} training samples"
    return (
        f"top-1: accuracy after {epochs} epoch(s) of {amount}. Mpar: million parameters. MFLOP: of one sample forward, "
        f"a multiply-add is two. MiB: peak of one forward pass, parameters included, at batch 1 and {LARGE}. "
        f"ms: median of one forward pass on the CPU, threads: {threads}. %/Mpar: accuracy density."
    )


def markdown(rows: Sequence[ModelFigures], note: str) -> str:
    lines = [COLUMNS, ["---", "---", *["---:"] * (len(COLUMNS) - 2)], *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}\n"


def as_json(rows: Sequence[ModelFigures], epochs: int, limit: int | None) -> bytes:
    """`{"epochs": …, "limit": …, "models": […]}`; every model with its density."""
    models: list[dict[str, Any]] = [msgspec.structs.asdict(row) | {"density": row.density} for row in rows]
    return msgspec.json.encode({"epochs": epochs, "limit": limit, "models": models})


def write_report(out: Path, rows: Sequence[ModelFigures], epochs: int, limit: int | None) -> list[Path]:
    """models.md, models.json and three plots in `out`; the files written."""
    out.mkdir(parents=True, exist_ok=True)
    table, data = out / "models.md", out / "models.json"
    table.write_text(markdown(rows, explain(rows, epochs, limit)), encoding="utf-8")
    data.write_bytes(msgspec.json.format(as_json(rows, epochs, limit), indent=2) + b"\n")
    return [table, data, *draw_scatters(out, rows)]
