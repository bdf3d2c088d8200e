"""How long the others stand still when a worker comes: with most of the state streamed to it before, and without.

    python benchmarks/newcomer.py [--plans "allreduce;topk(0.01)"] [--lab "4 hosts, 100mbit"] [--rounds 5]

Four workers train a model of a million parameters (8.5 MB of state with its momentum) on the hosts of a lab. One of
them, not the first, is killed and started again; when it is in, the next. *Stands still*: how much longer than the
median of the steps before it the step took in which the newcomer got its state. In every other round newcomers do not
stream nothing (SHOAL_STREAMING=0): the same run, in turns.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report import Table, machine_line, write_report

from shoal.groups.state_streaming import STREAMING_VARIABLE

HERE = Path(__file__).resolve().parent
PLANS = "allreduce;onebit;topk(0.01);dgc(0.001)"
PATIENCE = 120.0
BEFORE = 20
"""Steps before a newcomer's of which the median is taken."""
NOTE = (
    "Median (smallest-largest) over the newcomers. *Streamed*: how many got most of the state before they entered. "
    "*Stands still*: how much longer than usual the step took in which the newcomer entered; *waited for*: what came "
    "then. *Updates*: made by the others during the stream, and made again by the newcomer."
)
Event = dict[str, Any]


class Training:
    """A run in a lab."""

    def __init__(self, plan: str, lab: str, workers: int, folder: Path, streaming: bool) -> None:
        self.folder, self.over = folder, folder / "over"
        words = ["run", "--lab", lab, "--workers", str(workers), "--plan", plan, "--name", "one", "--restarts", "1000"]
        words += ["--checkpoint", "off", str(HERE / "newcomer_script.py"), str(self.over)]
        environment = os.environ | {STREAMING_VARIABLE: str(int(streaming)), "PYTHONPATH": str(HERE)}
        with (folder / "said").open("w") as said:
            line = [sys.executable, "-m", "shoal", *words]
            self.process = subprocess.Popen(line, cwd=folder, stdout=said, stderr=said, env=environment)

    def events(self, slot: int) -> list[Event]:
        path = self.folder / f"runs/one/worker-{slot}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def of(self, slot: int, kind: str) -> list[Event]:
        return [event for event in self.events(slot) if event["event"] == kind]

    def wait(self, what: str, until: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE
        while not until():
            if self.process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"no {what} in {PATIENCE:.0f} s; the run said: {(self.folder / 'said').read_text()}")
            time.sleep(0.1)

    def newcomer(self, slot: int) -> Event:
        """Kill the worker in a slot; what its successor's coming took."""
        came, steps = len(self.of(slot, "entered")), len(self.of(0, "step"))
        self.wait("training", lambda: len(self.of(0, "step")) > steps + BEFORE)
        os.kill(self.of(slot, "started")[-1]["pid"], signal.SIGKILL)
        self.wait("newcomer", lambda: len(self.of(slot, "entered")) > came)
        entered = self.of(slot, "entered")[-1]
        first = entered["step"] + 1
        self.wait("step with it", lambda: self.of(0, "step")[-1]["step"] > first + 10)
        at = {event["step"]: event["at"] for event in self.of(0, "step")}
        took = {n: at[n] - at[n - 1] for n in at if n - 1 in at}
        usual = statistics.median(took[n] for n in took if first - BEFORE <= n < first - 2)
        longest = max(took[n] for n in took if abs(n - first) <= 2)  # a step is counted when the next one begins
        return entered | {"usual": usual, "still": max(0.0, longest - usual)}

    def end(self) -> None:
        self.over.touch()
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(plan: str, args: argparse.Namespace, streaming: bool, slots: Sequence[int]) -> list[Event]:
    with tempfile.TemporaryDirectory(prefix="shoal-newcomer-") as folder:
        one = Training(plan, args.lab, args.workers, Path(folder).resolve(), streaming)
        try:
            return [one.newcomer(slot) for slot in slots]
        finally:
            one.end()


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    low, middle, high = (f"{scale * value:.3g}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}-{high})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", default=PLANS, help="separated by ;")
    parser.add_argument("--lab", default="4 hosts, 100mbit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="runs with streaming, and as many without")
    parser.add_argument("--newcomers", type=int, default=3, help="in each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "reports")
    args = parser.parse_args()
    machine, chance = machine_line(), random.Random(args.seed)
    table = Table(
        "plan", "streaming", "newcomers", "streamed", "step ms", "stands still ms", "waited for kB", "updates"
    )
    for plan in args.plans.split(";"):
        found: dict[bool, list[Event]] = {True: [], False: []}
        for _ in range(args.rounds):
            for streaming in (True, False):
                slots = [chance.randrange(1, args.workers) for _ in range(args.newcomers)]
                found[streaming] += measure(plan, args, streaming, slots)
        for streaming, came in found.items():
            table.add(
                f"`{plan}`",
                "yes" if streaming else "no",
                len(came),
                sum(bool(one["lent"]) for one in came),
                spread([one["usual"] for one in came], 1e3),
                spread([one["still"] for one in came], 1e3),
                spread([one["given"] for one in came], 1e-3),
                spread([one["updates"] for one in came]),
            )
    write_report(args.out, "newcomer", "What the others wait for when a worker comes", [machine, NOTE], table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
