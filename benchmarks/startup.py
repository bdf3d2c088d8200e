"""Time from the command to the end of the first step: `shoal run` against `torchrun` with DDP, two workers.

    python benchmarks/startup.py [--workers 2] [--repeats 7]

The two take turns. Each script prints the clock when worker 0 has made its first step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Table, machine_line, write_report

MODEL = """
import time, torch, torch.nn.functional as F
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 64), torch.randint(10, (32,))
"""
STEP = """
F.cross_entropy(model(x), y).backward()
optimizer.step()
"""
SHOAL = f"""import shoal
run = shoal.start()
{MODEL}
model, optimizer = run.join(model, optimizer)
{STEP}
if run.is_main: print("first step", time.time(), flush=True)
"""
DDP = f"""import torch.distributed as dist
dist.init_process_group("gloo")
{MODEL}
model = torch.nn.parallel.DistributedDataParallel(model)
{STEP}
if dist.get_rank() == 0: print("first step", time.time(), flush=True)
dist.destroy_process_group()
"""


def first_step(command: list[str]) -> float:
    """Seconds from starting `command` to the moment it says it has made a step."""
    began = time.time()
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    line = next((line for line in done.stdout.splitlines() if "first step" in line), None)
    if line is None:
        raise SystemExit(f"{' '.join(command)} made no step (exit code {done.returncode}):\n{done.stderr[-2000:]}")
    return float(line.split()[-1]) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "reports")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours.py"), Path(folder, "theirs.py")
        ours.write_text(SHOAL)
        theirs.write_text(DDP)
        shoal = [sys.executable, "-m", "shoal", "run", "--workers", str(args.workers), "--runs", folder, str(ours)]
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(args.workers),
            str(theirs),
        ]
        pairs = [(first_step(shoal), first_step(torchrun)) for _ in range(args.repeats)]
    table = Table("workers", "shoal s", "torchrun s", "repeats", "", "shoal / torchrun")
    ratios = [a / b for a, b in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    table.add(
        args.workers,
        f"{statistics.median(a for a, _ in pairs):.2f}",
        f"{statistics.median(b for _, b in pairs):.2f}",
        args.repeats,
        "",
        f"{statistics.median(ratios):.3f} ({low:.3f}–{high:.3f})",
    )
    note = "Median seconds from the command to the end of the first step; the ratio is the median of pairs."
    write_report(args.out, "startup", "From the command to the first step", [note, machine_line()], table)


if __name__ == "__main__":
    main()
