"""`shoal run`: train a script on several workers of this host.

Exit codes: 0 done · 1 the script failed · 2 the command was wrong · 130 interrupted.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.cluster.launch.local import Failure, Job, Watcher
    from shoal.watch.live import Display

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
DISPLAY_SECONDS = 0.2


def run(
    script: Annotated[str, typer.Argument(help="The training script.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Worker processes.")] = 1,
    plan: Annotated[str, typer.Option(help="A plan, a named plan, or a TOML file.")] = "allreduce, every(1)",
    name: Annotated[str | None, typer.Option(help="The run's id; made up if left out.")] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample order and all random numbers.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Last line of output: one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors (and the JSON object).")] = False,
) -> None:
    """Train SCRIPT on several workers, by a plan."""
    from shoal.cli.errors import usage_errors

    with usage_errors():
        job = prepare(script, arguments or [], workers, plan, name, runs, seed)
        raise typer.Exit(supervise(job, json=json, quiet=quiet))


def prepare(
    script: str, arguments: list[str], workers: int, plan: str, name: str | None, runs: str | None, seed: int
) -> "Job":
    """Check everything that can be wrong before anything starts, then open the run's record."""
    import sys
    import time

    from shoal.core import record
    from shoal.core.errors import UsageError
    from shoal.core.ids import check_id, new_id
    from shoal.plan.load import load
    from shoal.plan.rules import check

    path = Path(script)
    if not path.is_file():
        raise UsageError(f"no script {script!r} here; give the path of a Python file")
    if seed < 0:
        raise UsageError(f"--seed {seed} is not a seed; give a whole number, 0 or more")
    chosen = load(plan)
    check(chosen, workers)
    run_id = check_id(name, "--name") if name is not None else new_id()
    directory = record.run_dir(record.runs_root(runs), run_id).absolute()

    from shoal.cluster.launch.local import Job  # imports torch: only once the command is right

    info = record.RunInfo(
        run=run_id,
        plan=str(chosen),
        workers=workers,
        seed=seed,
        script=str(path),
        command=["shoal", *sys.argv[1:]],
        started=time.time(),
        versions=record.versions(),
        machine=record.machine(),
    )
    record.write_info(directory, info)
    return Job(path, arguments, workers, run_id, directory, str(chosen), seed, threads_per_worker(workers))


def threads_per_worker(workers: int) -> int | None:
    """Cores shared out evenly, unless the user has set threads."""
    import os

    if "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers)


def supervise(job: "Job", *, json: bool, quiet: bool) -> int:
    """Run the job, show it, write its summary; returns the exit code."""
    import msgspec

    import shoal.train.run  # noqa: F401  (warm: workers are forked with everything imported)
    from shoal.cluster.launch.local import LocalLauncher
    from shoal.watch.live import open_display
    from shoal.watch.record import Record
    from shoal.watch.summary import summarise, write_summary

    display = open_display(quiet)
    try:
        failure = LocalLauncher(job, make_watcher(job, display, quiet)).run()
        code = EXIT_FAILED if failure else 0
    except KeyboardInterrupt:
        failure, code = None, EXIT_INTERRUPTED
    finally:
        display.stop()
    summary = summarise(Record.open(job.dir), code)
    write_summary(job.dir, summary)
    if failure:
        explain(failure, job)
    elif code == EXIT_INTERRUPTED:
        typer.echo(f"shoal: interrupted after step {summary.steps}; the record is in {shown(job.dir)}", err=True)
    elif not quiet:
        typer.echo(
            f"shoal: {summary.steps} steps, {summary.samples} samples in {summary.seconds:.2f} s "
            f"({summary.samples_per_second:.0f} samples/s); shoal show {job.run}",
            err=True,
        )
    if json:
        typer.echo(msgspec.json.encode(summary).decode())
    return code


def make_watcher(job: "Job", display: "Display", quiet: bool) -> "Watcher":
    """Passes workers' output on, and feeds the display and TensorBoard from the board and the record."""
    import sys

    from shoal.cluster.board import Board, State
    from shoal.cluster.launch.local import Watcher
    from shoal.core.clock import now
    from shoal.watch.live import WorkerRow
    from shoal.watch.tensorboard import TensorBoardMirror, available

    mirror = TensorBoardMirror(job.dir) if available() else None

    class Showing(Watcher):
        def __init__(self) -> None:
            self.began = self.drawn = self.mirrored = now()

        def line(self, rank: int, stream: str, text: str) -> None:
            if stream == "err":
                display.print(f"[{rank}] {text}")
            elif not quiet:
                sys.stdout.write(f"[{rank}] {text}\n")
                sys.stdout.flush()

        def tick(self, board: Board) -> None:
            if not quiet and now() - self.drawn >= DISPLAY_SECONDS:
                self.drawn = now()
                display.update([row(board, rank) for rank in range(job.workers)], now() - self.began)
            if mirror is not None and now() - self.mirrored >= 1.0:
                mirror.update()
                self.mirrored = now()

    def row(board: Board, rank: int) -> WorkerRow:
        word = board.read(rank)
        return WorkerRow(
            rank=rank,
            step=int(word["step"]),
            epoch=int(word["epoch"]),
            loss=word["loss"],
            samples=int(word["samples"]),
            bytes_sent=int(word["sent"]),
            state=State(int(word["state"])).name,
            pid=int(word["pid"]),
        )

    return Showing()


def explain(failure: "Failure", job: "Job") -> None:
    """Why the run ended: a traceback once, or one line that names rank and signal."""
    import signal

    who = f"worker {failure.rank}"
    if failure.signal is not None:
        name = signal.Signals(failure.signal).name
        typer.echo(f"shoal: {who} died of {name} (signal {failure.signal}); the others were stopped", err=True)
    elif failure.report is not None:
        for line in failure.report.traceback.rstrip().splitlines():
            typer.echo(f"[{failure.rank}] {line}", err=True)
        also = f" (and so did {', '.join(f'worker {r}' for r in failure.also)})" if failure.also else ""
        typer.echo(f"shoal: {who} failed{also}: {failure.report.error}", err=True)
    else:
        typer.echo(f"shoal: {who} ended without a word (os._exit?)", err=True)
    typer.echo(f"shoal: the record is in {shown(job.dir)}", err=True)


def shown(directory: Path) -> str:
    """A path as the user would write it."""
    try:
        return str(directory.relative_to(Path.cwd()))
    except ValueError:
        return str(directory)
