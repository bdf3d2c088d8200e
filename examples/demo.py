"""What Shoal is for, in about a minute: one script alone and together, with a worker killed, over a slow network.

    make demo
    python examples/demo.py --parts 1,2 --out runs/demo

Every line of the table has the command that makes it. The exit code is 1 if a claim does not hold: the accuracy of two
workers is that of one, no sample is lost or used twice, and a plan of Shoal's is faster than DDP over 20 Mbit/s.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_picture import draw
from rich.console import Console
from rich.table import Table

from shoal.watch.running import running

SCRIPT = Path(__file__).with_name("digits.py")
HIDDEN = ("--hidden", "128")
GOAL = 0.95
LAB = "2 hosts, 20mbit"
PLANS = ("allreduce", "int8", "lowrank(4)")
ONE_SAMPLE = 1 / 360
"""Of the test set: the last bits of a sum may decide one."""
KILL_AT, WAIT = 25, 180.0
UNSHARED = ("unshare", "--user", "--map-root-user", "--net", "--mount")
"""Makes this user root of namespaces of its own, where the system allows it: enough for a lab."""


@dataclass
class DemoLine:
    """One line of the table, and the command that makes it."""

    what: str
    workers: int
    seconds: float | None
    accuracy: float | None
    found: str
    command: str


@dataclass
class DemoResult:
    """What the parts found; `broken` names every claim that does not hold."""

    lines: list[DemoLine] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    """Of a worker that was not killed: when each step ended, and how long it took."""
    bars: list[tuple[str, float]] = field(default_factory=list)
    """Contestant -> seconds to the goal over the slow network."""

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.broken.append(text)


def shoal(*words: str, prefix: tuple[str, ...] = ()) -> list[str]:
    return [*prefix, sys.executable, "-m", "shoal", *words]


def shown(command: list[str]) -> str:
    """The command as a user would type it."""
    words = ["shoal" if command[i : i + 3] == [sys.executable, "-m", "shoal"] else w for i, w in enumerate(command)]
    at = words.index("shoal")
    return shlex.join([*words[: at + 1], *words[at + 3 :]])


def run(command: list[str]) -> dict[str, Any]:
    """Run it to its end; what its last line of output says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"demo: {shown(command)} ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def train(out: Path, name: str, workers: int, epochs: int, batch: int) -> list[str]:
    words = ["run", "--workers", str(workers), "--runs", str(out), "--name", name, "--json", "--quiet", str(SCRIPT)]
    return shoal(*words, "--epochs", str(epochs), "--batch", str(batch), *HIDDEN)


def same_accuracy(out: Path, result: DemoResult) -> None:
    """Part 1: 64 samples a step, by one process and by two workers."""
    accuracies = []
    for name, workers in (("alone", 1), ("two", 2)):
        command = train(out, name, workers, 5, 64 // workers)
        summary = run(command)
        accuracies.append(summary["metrics"]["accuracy"])
        what = "one process" if workers == 1 else "two workers, the same batches"
        found = "" if workers == 1 else f"accuracy {100 * (accuracies[1] - accuracies[0]):+.1f} points"
        result.lines.append(DemoLine(what, workers, summary["seconds"], accuracies[-1], found, shown(command)))
    apart = abs(accuracies[1] - accuracies[0])
    result.claim(apart <= ONE_SAMPLE + 1e-9, f"two workers reach {accuracies[1]:.4f}, one process {accuracies[0]:.4f}")


def killed_worker(out: Path, result: DemoResult) -> None:
    """Part 2: `kill -9` of worker 1 of three in the middle; the record and the ledger say what it cost."""
    epochs, directory = 12, out / "killed"
    command = train(out, "killed", 3, epochs, 21)
    training = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        kill_at(directory, KILL_AT)
        printed, _ = training.communicate(timeout=WAIT)
    finally:
        training.kill()
    if training.returncode:
        raise SystemExit(f"demo: {shown(command)} ended with {training.returncode}")
    summary = json.loads(printed.splitlines()[-1])
    found = run(shoal("show", "killed", "--runs", str(out), "--ledger", "--json"))["epochs"]
    lost, doubled = (sum(each[key] for each in found) for key in ("missing", "duplicate"))
    result.steps = steps_of(directory, 0)
    pause = max(seconds for worker in (0, 2) for _, seconds in steps_of(directory, worker))
    text = f"longest pause {pause:.2f} s; samples lost {lost}, doubled {doubled}"
    line = DemoLine("worker 1 of 3 killed", 3, summary["seconds"], summary["metrics"]["accuracy"], text, shown(command))
    line.command += f" & kill -9 PID  # of worker 1 in 'shoal ps', at step {KILL_AT}"
    result.lines.append(line)
    result.claim(summary["losses"] == 1, f"{summary['losses']} workers were lost; one was killed")
    result.claim((lost, doubled) == (0, 0), f"{lost} samples were lost and {doubled} used twice")
    whole = [each["epoch"] for each in found if each["finished"]] == list(range(epochs))
    result.claim(whole, f"the ledger does not hold {epochs} whole epochs")


def kill_at(directory: Path, step: int) -> None:
    """SIGKILL to worker 1 of the run in this folder once it is in this step."""
    limit = time.monotonic() + WAIT
    while time.monotonic() < limit:
        for each in running():
            if Path(each.dir) == directory and len(each.members) > 1 and each.members[1].step >= step:
                os.kill(each.members[1].pid, signal.SIGKILL)
                return
        time.sleep(0.02)
    raise SystemExit(f"demo: worker 1 was not in step {step} within {WAIT:.0f} s")


def steps_of(directory: Path, worker: int) -> list[tuple[float, float]]:
    """When a worker's steps ended, in seconds from the first, and how long each took."""
    events = [json.loads(line) for line in (directory / f"worker-{worker}.jsonl").read_text().splitlines()]
    steps = [(event["at"], event["seconds"]) for event in events if event["event"] == "step"]
    return [(at - steps[0][0], seconds) for at, seconds in steps]


def slow_network(out: Path, result: DemoResult) -> None:
    """Part 3: seconds to the same accuracy over 20 Mbit/s, in a lab."""
    prefix, missing = lab_prefix()
    if missing:
        result.notes.append(
            f"part 3, the 20 Mbit/s network, is left out: it emulates hosts, and this user lacks {missing}. "
            "Loopback has no rate that a user may set, and DDP's sockets pass no code of Shoal's that could limit them."
        )
        return
    words = ["bench", str(SCRIPT), "--lab", LAB, "--plans", "; ".join(PLANS), "--peers", "ddp", "--repeats", "1"]
    words += ["--one-seed", "--until", f"accuracy>={GOAL}", "--out", str(out / "network"), "--json"]
    command = shoal(*words, "--", "--epochs", "15", *HIDDEN, prefix=prefix)
    compare(run(command)["rows"], shown(command), result)


def compare(rows: list[dict[str, Any]], command: str, result: DemoResult) -> None:
    """One line for each contestant of a benchmark; every one must reach the goal, and one of ours be the fastest."""
    for row in sorted(rows, key=lambda row: not row["peer"]):
        name = "DDP" if row["peer"] else row["contestant"].replace("allreduce, every(1)", "no codec", 1)
        name = name.removeprefix("no codec, ")
        goal = row["goal_seconds"]
        result.claim(goal is not None, f"{name} did not reach an accuracy of {GOAL} over 20 Mbit/s")
        if goal is None:
            continue
        result.bars.append((name, goal["median"]))
        accuracy = row["trials"][0]["measured"]["curve"][-1]["metrics"]["accuracy"]
        found = f"{row['bytes_per_step'] / 1000:.0f} kB a step"
        result.lines.append(DemoLine(f"20 Mbit/s: {name}", 2, goal["median"], accuracy, found, command))
    ours = [seconds for name, seconds in result.bars if name != "DDP"]
    ddp = [seconds for name, seconds in result.bars if name == "DDP"]
    result.claim(bool(ours and ddp) and min(ours) < min(ddp), "no plan of Shoal's is faster than DDP over 20 Mbit/s")


def lab_prefix() -> tuple[tuple[str, ...], str]:
    """How to be allowed a lab: as this user, or as root of namespaces of its own; else what is missing."""
    program = "from shoal.lab.needs import missing; print('; '.join(missing()))"
    found = []
    for prefix in ((), UNSHARED):
        try:
            done = subprocess.run([*prefix, sys.executable, "-c", program], capture_output=True, text=True, check=False)
        except FileNotFoundError:  # no `unshare` here
            break
        if done.returncode:  # the system does not let this user make namespaces
            break
        if not done.stdout.strip():
            return prefix, ""
        found.append(done.stdout.strip())
    return (), found[-1] if found else "Shoal itself"


PARTS = {"1": same_accuracy, "2": killed_worker, "3": slow_network}


def show(console: Console, result: DemoResult) -> None:
    table = Table("", "what", "workers", "seconds", "accuracy", "found", box=None)
    for number, line in enumerate(result.lines, 1):
        seconds = "" if line.seconds is None else f"{line.seconds:.1f}"
        accuracy = "" if line.accuracy is None else f"{100 * line.accuracy:.1f} %"
        table.add_row(str(number), line.what, str(line.workers), seconds, accuracy, line.found)
    console.print(table)
    console.print(f"seconds over 20 Mbit/s are those of training to {100 * GOAL:.0f} % accuracy", style="dim")
    numbers: dict[str, list[str]] = {}
    for number, line in enumerate(result.lines, 1):
        numbers.setdefault(line.command, []).append(str(number))
    for command, lines in numbers.items():
        console.print(f"{','.join(lines)}: {command}", highlight=False, soft_wrap=True, style="dim")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="1,2,3", help="of 1 (same accuracy), 2 (a killed worker), 3 (slow network)")
    parser.add_argument("--out", type=Path, default=Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S"))
    args = parser.parse_args()
    out, result, console = args.out.absolute(), DemoResult(), Console()
    os.environ["SHOAL_REGISTER"] = "0"  # a demo leaves no model behind
    for part in args.parts.split(","):
        if part not in PARTS:
            parser.error(f"--parts {args.parts}: there is no part {part!r}; parts are {', '.join(PARTS)}")
        title = (PARTS[part].__doc__ or "").splitlines()[0]
        console.print(title, style="dim")
        PARTS[part](out, result)
    show(console, result)
    draw(out / "demo.svg", result.steps, result.bars, GOAL)
    for note in result.notes:
        console.print(note, soft_wrap=True, highlight=False)
    console.print(f"picture: {out / 'demo.svg'}", highlight=False, soft_wrap=True)
    if result.broken:
        raise SystemExit("demo: a claim does not hold: " + "; ".join(result.broken))


if __name__ == "__main__":
    main()
