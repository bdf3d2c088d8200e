"""Unequal machines: samples per second when one of four workers is four times slower, as a share of what all could do.

    python benchmarks/balance.py [--speeds 1,1,1,0.25] [--rounds 3] [--out benchmarks/reports]

DDP, equal shares and `balance(auto)` take turns; a step sleeps as long as its samples take at a worker's speed (see
`balance_script.py`). The capacity is the sum of all speeds: the rate without any waiting.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from balance_script import SAMPLE_SECONDS
from report import Table, machine_line, write_report

SCRIPT = Path(__file__).with_name("balance_script.py")
PLANS = {"DDP": "", "balance(even)": "allreduce", "balance(auto)": "balance(auto)"}


def turn(contestant: str, speeds: str, folder: Path) -> float:
    """Samples per second of one training."""
    out = folder / "rate.json"
    workers = str(speeds.count(",") + 1)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if contestant == "DDP":
        environment["CONTESTANT"] = "ddp"
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node", workers]
    else:
        words = ["shoal", "run", "-q", "-w", workers, "--plan", PLANS[contestant], "--runs", str(folder / "runs")]
        environment["SHOAL_REGISTER"] = "0"
    subprocess.run([sys.executable, "-m", *words, str(SCRIPT), speeds, str(out)], env=environment, check=True)
    return float(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--speeds", default="1,1,1,0.25")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    capacity = sum(map(float, options.speeds.split(","))) / SAMPLE_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        rounds = [{name: turn(name, options.speeds, Path(folder)) for name in PLANS} for _ in range(options.rounds)]
    table = Table("speeds", "rounds", "plan", "samples/s", "of capacity", "lowest-highest")
    for name in PLANS:
        rates = [found[name] for found in rounds]
        shares = [rate / capacity for rate in rates]
        spread = f"{min(shares):.2f}-{max(shares):.2f}"
        table.add(options.speeds, options.rounds, name, f"{statistics.median(rates):.0f}",
                  f"{statistics.median(shares):.2f}", spread)  # fmt: skip
    if options.out:
        write_report(options.out, "balance", "One of four workers is slower", [machine_line()], table)


if __name__ == "__main__":
    main()
