"""A job of stages, each on workers of its own, beside every fixed number of workers: seconds and core-seconds.

    python benchmarks/stages.py [--repeats 2] [--most 4] [--steps 40]

The job is `examples/growing_batch.py`: three stages of small batches, then one of large ones, the same batches for any
number of workers, so all end at the same loss. Samples and steps take a given time (they sleep), because a machine with
fewer cores than workers would measure the processor instead; what travels, starts and stops is real.

One worker for everything always has the fewest core-seconds, as nothing is ever shared out, and takes longest. So the
figure is the product of core-seconds and seconds, as energy and delay are multiplied elsewhere; and whether any fixed
number is as fast with fewer core-seconds.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from report import Table, machine_line, write_report

ROOT = Path(__file__).resolve().parents[1]
SMALL, LARGE = 4, 256
WORK, OVERHEAD = 0.002, 0.05
"""Seconds of a sample, and of a step beside its samples."""


Figures = tuple[float, float, float]
"""Seconds, core-seconds, and the loss at the end."""


def measure(folder: Path, name: str, stages: list[tuple[int, int]], steps: int, most: int) -> Figures:
    first = stages[0][1]
    words = ["--workers", str(first), "--spare", str(most - first)] if most > first else ["--workers", str(first)]
    job = [str(ROOT / "examples/growing_batch.py"), "--steps", str(steps), "--stages"]
    job += [f"{batch}x{workers}" for batch, workers in stages]
    job += ["--work", str(WORK), "--overhead", str(OVERHEAD)]
    shoal = [sys.executable, "-m", "shoal"]
    done = subprocess.run(
        [*shoal, "run", "--name", name, "--checkpoint", "off", *words, *job],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loss = re.search(r"expected loss ([\d.]+)", done.stdout)
    assert loss is not None, done.stderr
    shown = subprocess.run([*shoal, "show", name, "--json"], cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(shown.stdout)["stages"]
    return sum(each["seconds"] for each in found), sum(each["core_seconds"] for each in found), float(loss[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2, help="turns of all; medians count")
    parser.add_argument("--most", type=int, default=4, help="workers")
    parser.add_argument("--steps", type=int, default=40, help="of each stage")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/reports")
    args = parser.parse_args()
    jobs = {f"{count} all along": (count, count) for count in range(1, args.most + 1)}
    jobs[f"1, then {args.most}"] = (1, args.most)
    taken: dict[str, list[Figures]] = {job: [] for job in jobs}
    machine = machine_line()
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.repeats):
            for number, (job, (small, large)) in enumerate(jobs.items()):
                stages = [(SMALL, small)] * 3 + [(LARGE, large)]
                most = max(small, large)
                taken[job].append(measure(Path(folder), f"job{number}-{turn}", stages, args.steps, most))
    table = Table("workers", "seconds", "core-seconds", "product", "loss")
    for job, turns in taken.items():
        seconds, cores, loss = (median(column) for column in zip(*turns, strict=True))
        table.add(job, f"{seconds:.1f}", f"{cores:.1f}", f"{seconds * cores:.0f}", f"{loss:.4f}")
    notes = [
        f"{machine} Medians of {args.repeats} turns. Batches of {SMALL}, {SMALL}, {SMALL} and {LARGE} samples for "
        f"{args.steps} steps each; a sample takes {1e3 * WORK:g} ms, a step {1e3 * OVERHEAD:g} ms more.",
        "Core-seconds count every worker from its start to its end, one core each.",
    ]
    write_report(args.out, "stages", "Workers for each stage of a job", notes, table)


if __name__ == "__main__":
    main()
