"""Parameter servers beside other tools: a push and a pull, a straggler, and the time to a goal in a slow network.

    python benchmarks/servers.py [--data DIR] [--repeats 5] [--numbers 6250000] [--quick] [--without ray]

Exchange: two workers push 25 MB to one server and pull 25 MB, through Shoal on one host, through Shoal over links under
keys, through torch RPC and through a Ray actor, in turns. Straggler: `shoal bench` on four workers, one of them four
times as slow. Goal, with --data and as root: MNIST to 97 % on four emulated hosts of 20 Mbit/s, against DDP. A
contestant that fails has its error in the table. TensorFlow's ParameterServerStrategy is not among them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import Table, machine_line, write_report

from shoal.bench.turns import turns

HERE = Path(__file__).parent
SHOAL = (sys.executable, "-m", "shoal")
ASYNC = "server, async"
ONE_HOST, UNDER_KEYS = "shoal, one host", "shoal, under keys"
EXCHANGES = (ONE_HOST, UNDER_KEYS, "rpc", "ray")
STRAGGLERS = ("server, stale(3)", "server, stale(3, samples=leased)", "server, async(samples=leased)")
GOALS = ("server, stale(3), topk(0.01)", "server, async(samples=leased), significant(0.05)")
CAPACITY = 8 / 0.02 * (3 + 1 / 4)
"""Samples a second of all workers of servers_straggler.py, if no worker had to wait."""
SECONDS = 900


def exchange_command(name: str, words: list[str], folder: Path) -> list[str]:
    script = str(HERE / "servers_exchange.py")
    if not name.startswith("shoal"):
        return [sys.executable, script, name, *words]
    run = [*SHOAL, "run", "-w", "2", "--plan", ASYNC, "--checkpoint", "off"]
    if name == UNDER_KEYS:
        key = folder / "key"
        if not key.exists():
            subprocess.run([*SHOAL, "keys", "new", str(key)], check=True, capture_output=True)
        run += ["--listen", "127.0.0.1:0", "--key", str(key)]
    return [*run, script, "shoal", *words]


def measure_exchange(name: str, words: list[str], folder: Path) -> list[float] | str:
    """Seconds of a push and a pull, or why there are none."""
    try:
        done = subprocess.run(
            exchange_command(name, words, folder), cwd=folder, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    lines = [line[line.index('{"seconds"') :] for line in done.stdout.splitlines() if '{"seconds"' in line]
    if not lines:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:120]
    found: list[float] = json.loads(lines[-1])["seconds"]
    return found


def compare_exchanges(args: argparse.Namespace, table: Table) -> None:
    words = ["--numbers", str(args.numbers), "--steps", str(args.steps)]
    chosen = [name for name in EXCHANGES if name not in args.without]
    found: dict[str, list[float]] = {name: [] for name in chosen}
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _, name in turns(chosen, args.repeats):
            if name not in errors:
                seconds = measure_exchange(name, words, Path(folder))
                if isinstance(seconds, str):
                    errors[name] = seconds
                else:
                    found[name].append(statistics.median(seconds))
    base = statistics.median(found[ONE_HOST]) if found.get(ONE_HOST) else None
    for name in chosen:
        add_row(table, "push + pull", name, found[name], "ms", 1e3, base, errors.get(name, ""))


def add_row(
    table: Table, part: str, name: str, found: list[float], unit: str, scale: float, base: float | None, error: str
) -> None:
    if error or not found:
        table.add(part, name, "-", "-", "-", error or "not reached")
        return
    median = statistics.median(found)
    ratio = f"{median / base:.2f}" if base else "-"
    table.add(
        part, name, f"{scale * median:.3g} {unit}", f"{scale * min(found):.3g}-{scale * max(found):.3g}", ratio, ""
    )


def run_bench(words: list[str], arguments: list[str]) -> list[dict[str, Any]]:
    """The rows of `shoal bench`."""
    with tempfile.TemporaryDirectory() as folder:
        line = [*SHOAL, "bench", *words, "--json", "--out", f"{folder}/out"]
        subprocess.run(
            [*line, *(["--", *arguments] if arguments else [])], cwd=folder, check=False, stdout=subprocess.DEVNULL
        )
        report = Path(folder, "out", "bench.json")
        rows: list[dict[str, Any]] = json.loads(report.read_text())["rows"] if report.exists() else []
        return rows


def measured(row: dict[str, Any], what: str) -> list[float]:
    return [each["measured"][what] for each in row["trials"] if each["measured"] and each["measured"].get(what)]


def failed(row: dict[str, Any]) -> str:
    return next((each["error"][:120] for each in row["trials"] if each["error"]), "")


def compare_stragglers(args: argparse.Namespace, table: Table) -> None:
    words = [str(HERE / "servers_straggler.py"), "--plans", "; ".join(STRAGGLERS), "--peers", "ddp", "-w", "4"]
    for row in run_bench([*words, "--repeats", str(args.repeats)], []):
        shares = [rate / CAPACITY for rate in measured(row, "samples_per_second")]
        add_row(table, "straggler", row["contestant"], shares, "of the summed capacity", 1.0, None, failed(row))


def compare_goals(args: argparse.Namespace, table: Table) -> None:
    script = str(HERE.parent / "examples" / "mnist.py")
    words = [script, "--plans", "; ".join(GOALS), "--peers", "ddp", "-w", "4", "--until", "accuracy>=0.97"]
    words += ["--lab", "4 hosts, 20mbit, 10ms", "--repeats", str(args.repeats)]
    rows = run_bench(words, ["--data", str(Path(args.data, "mnist").resolve()), "--batch", "16"])
    ddp = [second for row in rows if row["contestant"] == "ddp" for second in measured(row, "goal_seconds")]
    for row in rows:
        base = statistics.median(ddp) if ddp else None
        found = measured(row, "goal_seconds")
        add_row(table, "97 % on MNIST, 20 Mbit/s", row["contestant"], found, "s", 1.0, base, failed(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="a folder with mnist/; without it there is no goal")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--numbers", type=int, default=6_250_000, help="of 4 bytes, pushed and pulled")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="one turn of few steps: a smoke test")
    parser.add_argument("--without", action="append", default=[], choices=EXCHANGES, help="leave a contestant out")
    parser.add_argument("--out", default=str(HERE / "reports"))
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.steps = 1, 5
    notes = [machine_line(), ABOUT]
    table = Table("part", "contestant", "median", "lowest-highest", "ratio", "error")
    compare_exchanges(args, table)
    compare_stragglers(args, table)
    if args.data:
        compare_goals(args, table)
    write_report(Path(args.out), "servers", "Parameter servers beside other tools", notes, table)


ABOUT = (
    "Each figure is the median of the turns, of a turn the median of its steps. The ratio of push + pull is to Shoal "
    "on one host, that of the goal to DDP; below 1 is faster. The straggler sleeps: what is compared is waiting."
)

if __name__ == "__main__":
    main()
