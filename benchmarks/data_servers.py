"""Steps a second of one trainer beside 0, 1, 2, 4 and 8 data servers, and the share of a step in which it waited.

    python benchmarks/data_servers.py [--sample 0.02] [--step 0.04] [--steps 80] [--servers 0,1,2,4,8] [--repeats 1]

A sample costs `--sample` seconds and a step `--step`, both slept: so the figures are the tier's on a machine of any
number of cores, as long as these are not all busy. Numbers of servers take turns. `loader` is `num_workers=2` of the
DataLoader instead of data servers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from report import machine_line

FIRST = 20
"""Steps that are not counted: servers start."""
SCRIPT = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE, STEP, STEPS = (float(os.environ[name]) for name in ("SAMPLE", "STEP", "STEPS"))

class Slow(Dataset):
    def __len__(self):
        return 8 * int(STEPS)
    def __getitem__(self, index):
        time.sleep(SAMPLE)
        return torch.randn(784), index % 10

run = shoal.start()
model = nn.Linear(784, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=8, shuffle=True, num_workers=int(os.environ["LOADERS"]))
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(1):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        time.sleep(STEP)
        optimizer.step()
        optimizer.zero_grad()
"""


def measure(folder: Path, servers: str, options: argparse.Namespace) -> tuple[float, float]:
    """Steps a second, and the share of them that the trainer waited."""
    (folder / "train.py").write_text(SCRIPT)
    words = [] if servers in ("0", "loader") else ["--data-servers", servers]
    command = [
        sys.executable,
        "-m",
        "shoal",
        "run",
        "-w",
        "1",
        *words,
        "--checkpoint",
        "off",
        "--json",
        "-q",
        "train.py",
    ]
    own = {"SAMPLE": options.sample, "STEP": options.step, "STEPS": options.steps, "LOADERS": 2 * (servers == "loader")}
    env = os.environ | {"SHOAL_REGISTER": "0"} | {name: str(value) for name, value in own.items()}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=True)
    record = Path(json.loads(done.stdout.splitlines()[-1])["dir"]) / "worker-0.jsonl"
    steps = [json.loads(line) for line in record.read_text().splitlines() if '"event":"step"' in line]
    later = [step for step in steps if step["step"] >= FIRST]
    seconds = sum(step["seconds"] for step in later)
    return len(later) / seconds, sum(step["load"] for step in later) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=float, default=0.02)
    parser.add_argument("--step", type=float, default=0.04)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--servers", default="0,1,2,4,8,loader")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {each: [] for each in options.servers.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            for servers, rows in found.items():
                rows.append(measure(Path(folder), servers, options))
    print(machine_line())
    print("| data servers | steps/s | trainer waited |\n|---|---|---|")
    for servers, rows in found.items():
        rate, waited = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {servers} | {rate:.1f} | {waited:.1%} |")


if __name__ == "__main__":
    main()
