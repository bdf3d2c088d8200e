"""What agreeing less often costs in accuracy, and what it gains beside a slow worker: named plans on MNIST or digits.

    python benchmarks/agreement.py --data DIR [--seeds 3] [--samples 8000] [--plans "local-sgd; hogwild"] [--skip slow]
    python benchmarks/agreement.py --data digits …        the 8x8 digits of scikit-learn in 10 passes, instead of MNIST

DIR holds `mnist/` with its four gzip files. Every plan trains the same samples on four workers of this machine, in
turns, and so does one process. Where the steps of all workers add up (one copy, datagrams) each takes a quarter of the
learning rate. Then one of four workers takes four times as long for a step, because it sleeps: samples a second against
what the four do without exchanging anything.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shoal.bench.turns import turns
from shoal.watch.record import RunRecord
from shoal.watch.worker import read_workers

WORKERS, RATE, PAUSE, BATCH_OF_ALL = 4, 0.1, 0.03, 32
ONE = "one process"
ADDING = ("hogwild", "hogwildpp", "h2o", "dogwild")
"""Plans under which the steps of all workers add up."""
PLANS = (
    ONE, "bsp", "local-sgd", "sparknet", "dl4j", "bmuf", "diloco", "streaming-diloco", "local(16, diloco)", "easgd",
    "crossbow", "malt", "a-bsp", "butterfly", "pipe-sgd", "firecaffe", "project-adam", "nexus", *ADDING,
)  # fmt: skip
SLOW = ("bsp", "local(16)", "local(16, samples=leased)", "a-bsp")
"""Beside a slow worker."""
JOB = Path(__file__).with_name("agreement_job.py")
DIGITS = Path("digits")


class TrainingFailedError(Exception):
    """The message is the last line of the command."""


def train(args: argparse.Namespace, plan: str, seed: int, pause: float, folder: Path) -> dict[str, Any]:
    """The summary of a run in `folder`."""
    workers, plan_ = (1, "alone") if plan == ONE else (WORKERS, plan)
    rate = RATE / WORKERS if plan in ADDING else RATE
    words = ["run", "-w", str(workers), "--json", "--plan", plan_, "--checkpoint", "off", "--seed", str(seed)]
    place = args.data if args.data == DIGITS else args.data / "mnist"
    job = [str(JOB), str(place), str(args.samples), str(rate), str(pause)]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, "--name", "run", "--runs", str(folder), *job],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=args.seconds,
        check=False,
    )
    if done.returncode:
        raise TrainingFailedError(f"{plan}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure_accuracy(args: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {plan: [] for plan in args.plans}
    for seed, plan in turns(args.plans, args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            found[plan].append(float(train(args, plan, seed, 0.0, Path(folder))["metrics"]["accuracy"]))
        print(f"seed {seed}  {plan:<20} {found[plan][-1]:.2%}", file=sys.stderr, flush=True)
    alone = statistics.mean(found[ONE])
    print(f"| plan | accuracy, mean of {args.seeds} | of one process | seeds |")
    print("|---|---|---|---|")
    for plan, values in found.items():
        each = ", ".join(f"{value:.1%}" for value in values)
        mean = statistics.mean(values)
        print(f"| `{plan}` | {mean:.1%} | {100 * (mean - alone):+.1f} points | {each} |", flush=True)


def measure_slow_worker(args: argparse.Namespace) -> None:
    """Samples a second of each plan, of what all four do by themselves."""
    found: dict[str, list[float]] = {plan: [] for plan in ("alone", *SLOW)}
    for seed, plan in turns(list(found), args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            summary = train(args, plan, seed, PAUSE, Path(folder))
            workers = read_workers(RunRecord.open(Path(folder) / "run"))
        if plan == "alone":
            found[plan].append(sum(worker.samples / worker.seconds for worker in workers))
        else:
            found[plan].append(float(summary["samples"]) / float(summary["seconds"]))
        print(f"turn {seed}  {plan:<28} {found[plan][-1]:.0f} samples/s", file=sys.stderr, flush=True)
    capacity = statistics.median(found["alone"])
    print("\n| plan, one of four workers four times slower | of summed capacity |")
    print("|---|---|")
    for plan in SLOW:
        print(f"| `{plan}` | {statistics.median(found[plan]) / capacity:.2f} |", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--plans", default=";".join(PLANS), help="with ; between them")
    parser.add_argument("--skip", choices=["accuracy", "slow"], help="one of the two tables")
    parser.add_argument("--seconds", type=float, default=600.0, help="for one training")
    args = parser.parse_args()
    if args.data != DIGITS and not (args.data / "mnist").is_dir():
        parser.error(f"no folder mnist in {args.data}")
    if args.seeds < 1 or args.samples < BATCH_OF_ALL:
        parser.error(f"--seeds {args.seeds} --samples {args.samples}: at least 1, and {BATCH_OF_ALL}")
    args.data = args.data if args.data == DIGITS else args.data.absolute()
    args.plans = list(dict.fromkeys([ONE, *(plan.strip() for plan in args.plans.split(";"))]))
    return args


def main() -> int:
    args = arguments()
    try:
        if args.skip != "accuracy":
            measure_accuracy(args)
        if args.skip != "slow":
            measure_slow_worker(args)
    except (TrainingFailedError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
