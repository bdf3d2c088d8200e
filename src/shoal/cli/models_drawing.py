"""Tables of `shoal models`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from shoal.models.compare import VersionDiff
    from shoal.models.version import Manifest, ModelVersion

SHOWN = 40
"""Tensors that `show` and `diff` list; JSON has all."""


def size(count: int) -> str:
    """Bytes for people: `1.5 MB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def metrics_text(metrics: "dict[str, float | None]") -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items() if value is not None)


def draw_rows(columns: list[str], rows: "list[tuple[Any, ...]]") -> None:
    """A plain table, as wide as it is: a pipe or pager may follow."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for line in [columns, *texts]:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def draw_versions(versions: "list[ModelVersion]", root: Path) -> None:
    if not versions:
        typer.echo(f"no versions in {root}; a run that ends well adds one")
        return
    columns = ["model", "aliases", "created", "size", "metrics", "plan", "run"]
    draw_rows(
        columns,
        [
            (v.ref, " ".join(v.aliases), moment(v.created), size(v.bytes), metrics_text(v.metrics), v.plan, v.run)
            for v in versions
        ],
    )


def draw_version(version: "ModelVersion", manifest: "Manifest", ancestors: "list[ModelVersion]") -> None:
    lineage = manifest.lineage
    lines = {
        "model": version.ref,
        "aliases": " ".join(version.aliases),
        "created": moment(version.created),
        "digest": version.digest,
        "size": f"{size(version.bytes)}, {version.parameters} elements in {len(manifest.tensors)} tensors",
        "metrics": metrics_text(version.metrics),
        "run": version.run,
        "plan": " -> ".join(f"{use.plan} (from step {use.step})" for use in lineage.plans) or version.plan,
        "trained": f"{version.step} steps, {version.epoch + 1} epochs, {version.samples} samples"
        if version.step
        else "",
        "script": f"{version.script} (sha256 {version.code[:16]})" if version.code else version.script,
        "data": version.data,
        "workers": ", ".join(f"{each['worker']} on {each['host']}" for each in lineage.members),
        "parents": " <- ".join(each.ref for each in ancestors) or version.parent,
        "files": ", ".join(f"{entry.name} ({size(entry.size)})" for entry in manifest.files),
        "note": version.note,
    }
    for name, text in lines.items():
        if text:
            typer.echo(f"{name:<8} {text}")
    for entry in manifest.tensors[:SHOWN]:
        typer.echo(f"         {entry.name}  {entry.dtype}{entry.shape}")
    if len(manifest.tensors) > SHOWN:
        typer.echo(f"         … and {len(manifest.tensors) - SHOWN} more; --json lists all")


def draw_diff(found: "VersionDiff") -> None:
    rows: list[tuple[Any, ...]] = [(name, *pair) for name, pair in (found.metrics | found.fields).items()]
    if rows:
        draw_rows(["", found.first, found.second], rows)
    changes = [
        (change.name, change.what, f"{change.largest:.3g}", f"{change.relative:.3g}")
        if change.what == "changed"
        else (change.name, change.what, "", "")
        for change in found.tensors[:SHOWN]
    ]
    if changes:
        draw_rows(["tensor", "", "largest", "relative"], changes)
    if len(found.tensors) > SHOWN:
        typer.echo(f"… and {len(found.tensors) - SHOWN} more; --json lists all")
    typer.echo(f"{found.same} tensors are the same, {len(found.tensors)} differ")
