"""`python -m shoal.bench.peer NAME [options] SCRIPT [ARGS]`: a script as `shoal run` runs it, trained by a peer.

The same launcher, threads, seeds and record; the last line of output is the same JSON object, its plan the peer's name.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import msgspec
import torch

from shoal.bench.peers.base import BenchPeer
from shoal.bench.peers.run import PLAN, PeerRun
from shoal.bench.peers.table import PEERS
from shoal.core import record
from shoal.core.errors import UsageError
from shoal.core.ids import check_id, new_id
from shoal.core.signals import as_interrupts
from shoal.lab.load import load, write_lab
from shoal.launch.context import WorkerContext
from shoal.launch.failures import RunFailure
from shoal.launch.job import JobWatcher, LaunchJob
from shoal.launch.local import LocalLauncher
from shoal.launch.policy import threads_per_worker
from shoal.plan.plan import Plan
from shoal.watch.record import RunRecord
from shoal.watch.summary import summarise, write_summary

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class OutputPass(JobWatcher):
    """Passes on what workers write."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def line(self, rank: int, stream: str, text: str) -> None:
        if stream == "err" or not self.quiet:
            file = sys.stderr if stream == "err" else sys.stdout
            file.write(f"[{rank}] {text}\n")
            file.flush()


def make_run(peer: type[BenchPeer], context: WorkerContext, plan: Plan) -> PeerRun:
    return PeerRun(context, plan, peer())


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shoal.bench.peer", description="Train SCRIPT by another tool.")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--workers", "-w", type=int, default=1)
    parser.add_argument("--name")
    parser.add_argument("--runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lab")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", "-q", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def prepare(given: argparse.Namespace) -> LaunchJob:
    """Check the command and open the run's record."""
    if not Path(given.script).is_file():
        raise UsageError(f"no script {given.script!r} here; give the path of a Python file")
    if given.workers < 1 or given.seed < 0:
        raise UsageError(f"--workers {given.workers} --seed {given.seed}: give at least 1 worker and a seed from 0")
    lab = load(given.lab) if given.lab else None
    run = check_id(given.name, "--name") if given.name is not None else new_id()
    directory = record.run_dir(record.runs_root(given.runs), run).absolute()
    info = record.describe_run(
        run=run,
        plan=given.peer,
        workers=given.workers,
        seed=given.seed,
        script=given.script,
        command=["python", "-m", "shoal.bench.peer", *sys.argv[1:]],
        lab=write_lab(lab) if lab is not None else "",
    )
    record.write_info(directory, info)
    threads, make = threads_per_worker(given.workers), partial(make_run, PEERS[given.peer])
    script, arguments = Path(given.script), given.arguments
    return LaunchJob(script, arguments, given.workers, run, directory, PLAN, given.seed, threads, lab, make)


def supervise(job: LaunchJob, *, json: bool, quiet: bool) -> int:
    """Run the job and write its summary; returns the exit code."""
    failure, code = None, EXIT_INTERRUPTED
    try:
        failure = LocalLauncher(job, OutputPass(quiet)).run()
        code = EXIT_FAILED if failure else 0
    except KeyboardInterrupt:
        pass  # everything is stopped; what there is of the run is summed up below
    summary = summarise(RunRecord.open(job.dir), code)
    write_summary(job.dir, summary)
    if failure:
        sys.stderr.write(why(failure))
    if json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    return code


def why(failure: RunFailure) -> str:
    """A failed worker's last words."""
    if failure.report is not None:
        return f"{failure.report.traceback}shoal: worker {failure.rank} failed: {failure.report.error}\n"
    return f"shoal: worker {failure.rank} died of signal {failure.signal}\n"


def main(words: list[str] | None = None) -> int:
    given = parse(words)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer of a process imports 800 modules more
    try:
        with as_interrupts():
            return supervise(prepare(given), json=given.json, quiet=given.quiet)
    except UsageError as error:
        sys.stderr.write(f"shoal: {error}\n")
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
