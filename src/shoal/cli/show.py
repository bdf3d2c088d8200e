"""`shoal show`: the record of one run, drawn or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.watch.record import RunRecord


def show(
    run: Annotated[str | None, typer.Argument(help="The run's id or folder; the newest run if left out.")] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Prove from the ledger that every sample was used exactly once an epoch.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show what a run did: loss, time per phase, workers, bytes, warnings."""
    from shoal.cli.errors import usage_errors
    from shoal.core.record import runs_root
    from shoal.watch.console import open_console
    from shoal.watch.draw import draw_run
    from shoal.watch.record import RunRecord, resolve

    with usage_errors():
        record = RunRecord.open(resolve(runs_root(runs), run))
        if ledger:
            typer.echo(ledger_json(record) if json else ledger_text(record))
        elif json:
            typer.echo(as_json(record))
        else:
            open_console().print(draw_run(record))


def ledger_json(record: "RunRecord") -> str:
    """`{"epochs": [{"epoch": 0, "samples": 60000, "missing": 0, "duplicate": 0, …}]}`, one for each pass."""
    import msgspec

    from shoal.core.ledger import prove, read_ledger

    return msgspec.json.encode({"epochs": prove(read_ledger(record.dir))}).decode()


def ledger_text(record: "RunRecord") -> str:
    """Return the same, one line each."""
    from shoal.core.ledger import prove, read_ledger

    proofs = prove(read_ledger(record.dir))
    if not proofs:
        return "no step of this run used a joined loader"
    lines = [f"{'epoch':>6} {'loader':>7} {'pass':>5} {'samples':>10} {'missing':>8} {'duplicate':>10}"]
    for proof in proofs:
        end = "" if proof.finished else "  not finished"
        end = f"{end}  {proof.dropped} dropped (drop_last)" if proof.dropped else end
        end = f"{end}  {proof.skipped} skipped by the script" if proof.skipped else end
        figures = f"{proof.epoch:>6} {proof.loader:>7} {proof.number:>5} {proof.samples:>10}"
        lines.append(f"{figures} {proof.missing:>8} {proof.duplicate:>10}{end}")
    return "\n".join(lines)


def as_json(record: "RunRecord") -> str:
    """`{"info": …, "summary": …, "quantities": …, "verdict": …, "workers": […], "stages": […]}`.

    `exit` is -1 before the end.
    """
    import msgspec

    from shoal.watch.quantities import quantities
    from shoal.watch.stages import measure_stages
    from shoal.watch.summary import known_summary
    from shoal.watch.verdict import verdict
    from shoal.watch.worker import read_workers

    workers = read_workers(record)
    page = {
        "info": record.info,
        "summary": known_summary(record, workers),
        "quantities": quantities(workers),
        "verdict": verdict(workers),
        "workers": workers,
        "stages": measure_stages(record),
    }
    return msgspec.json.encode(page).decode()
