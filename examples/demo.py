"""The main job in about a minute: train the digits CNN with two workers under every exchange, and four codecs.

    make demo

Runs `shoal run --json` once per plan, one after the other, and prints one table.
"""

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shoal.plan.terms import TERMS

SCRIPT = Path(__file__).with_name("digits.py")
CODECS = ("fp16", "onebit", "topk(0.05)", "lowrank(2)")
"""One of each kind: precision, quantisation, sparsification, low rank."""


def plans() -> list[tuple[str, int]]:
    """(plan, workers): one process, then every exchange, then some codecs on the default exchange."""
    exchanges = [name for name, term in TERMS.items() if term.axis == "exchange"]
    return [("alone", 1), *((name, 2) for name in exchanges), *((f"allreduce, {name}", 2) for name in CODECS)]


def train(plan: str, workers: int) -> dict[str, object]:
    """One run as a user would start it; its last line of output says what it came to."""
    command = [sys.executable, "-m", "shoal", "run", "--workers", str(workers), "--plan", plan, "--json", "--quiet"]
    done = subprocess.run([*command, str(SCRIPT)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"demo: {' '.join(command)} {SCRIPT} ended with {done.returncode}")
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    console = Console()
    table = Table("plan", "workers", "seconds", "samples/s", "bytes sent", "accuracy", box=None)
    records = []
    for plan, workers in plans():
        console.print(f"training the digits with plan '{plan}', {workers} worker{'s' * (workers > 1)} …", style="dim")
        run = train(plan, workers)
        accuracy = run["metrics"]["accuracy"]  # type: ignore[index]
        speed = [f"{run['seconds']:.2f}", f"{run['samples_per_second']:.0f}"]
        table.add_row(str(run["plan"]), str(workers), *speed, f"{run['bytes_sent']:,}", f"{accuracy:.3f}")
        records.append(str(run["dir"]))
    console.print(table)
    console.print("the records lie in:", *records, "look at one: .venv/bin/shoal show", sep="\n  ", highlight=False)


if __name__ == "__main__":
    main()
