"""What the page of `shoal watch` costs: 64 workers with 10⁵ steps each, followed while they go on.

    python benchmarks/page.py                     # a record of some 2 GB in a temporary folder, about two minutes
    python benchmarks/page.py --workers 8 --steps 2000 --seconds 10

Prints one JSON object: seconds until the first answer, share of a core and memory while the record grows by ten steps a
second and worker and a page asks for what it shows twice a second.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import msgspec

from shoal.core.events import StepFinished, TrafficCounted, ValuesLogged, WorkerStarted
from shoal.core.record import RunInfo, worker_file, write_info

RATE = 10
"""Steps a second of each worker while it is measured."""


def step_lines(number: int, at: float) -> bytes:
    """One step of a worker, as its journal holds it."""
    phases = {"load": 0.001, "forward_backward": 0.06, "exchange_wait": 0.03, "encode": 0.002, "update": 0.006}
    step = StepFinished(
        at=at, step=number, epoch=number // 1000, samples=32, seconds=0.1, other=0.001, forward=0.02, backward=0.04,
        raw=4_000_000, sent=1_000_000, wire=1_100_000, ready=(0.01, 0.02, 0.03), done=(0.04, 0.05, 0.06), transfer=0.05,
        exposed=0.02, **phases,
    )  # fmt: skip
    logged = ValuesLogged(at=at, step=number, values={"loss": 1 / (1 + number)})
    return b"".join(msgspec.json.encode(event) + b"\n" for event in (step, logged))


def make_record(root: Path, workers: int, steps: int) -> Path:
    folder = root / "big"
    now = time.time()
    info = RunInfo(
        run="big", plan="allreduce, every(1)", workers=workers, seed=0, script="train.py", command=[],
        started=now - steps / RATE, versions={}, machine={},
    )  # fmt: skip
    write_info(folder, info)
    lines = b"".join(step_lines(number, info.started + number / RATE) for number in range(steps))  # alike for all
    for rank in range(workers):
        start = WorkerStarted(
            at=info.started, rank=rank, size=workers, host=f"host-{rank % 8}", pid=1, threads=1, device="cpu"
        )
        with worker_file(folder, rank).open("wb") as file:
            file.write(msgspec.json.encode(start) + b"\n")
            file.write(lines)
    return folder


def grow(folder: Path, workers: int, number: int) -> None:
    """One more step of every worker."""
    for rank in range(workers):
        with worker_file(folder, rank).open("ab") as file:
            file.write(step_lines(number, time.time()))
            if number % 20 == 0:
                peers = {str(peer): (number, number) for peer in range(workers) if peer != rank}
                file.write(msgspec.json.encode(TrafficCounted(at=time.time(), step=number, peers=peers)) + b"\n")


def spent(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Most MB it had at a time."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1000 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = make_record(Path(root), args.workers, args.steps)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(json.dumps({"record_bytes": size} | measure(Path(root), folder, args)))


def measure(root: Path, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, "-m", "shoal", "watch", "--runs", str(root), "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address, _, token = server.stderr.readline().split()[-1].partition("/#runs&token=")

        def ask(path: str) -> bytes:
            request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()

        began = time.monotonic()
        first = json.loads(ask("/api/runs/big"))
        opened = time.monotonic() - began
        while json.loads(ask("/api/runs/big"))["reading"]:
            time.sleep(0.05)
        whole = time.monotonic() - began
        share, sent = follow(server.pid, folder, args, ask)
        return {
            "first_answer_seconds": round(opened, 3), "estimated": first["estimated"], "read_seconds": round(whole, 3),
            "core_share": round(share, 4), "memory_mb": round(memory(server.pid), 1), "bytes_a_refresh": sent,
        }  # fmt: skip
    finally:
        server.terminate()
        server.wait()


def follow(pid: int, folder: Path, args: argparse.Namespace, ask) -> tuple[float, int]:
    """Share of a core while the record grows and a page asks twice a second."""
    began, before, number, sent = time.monotonic(), spent(pid), args.steps, 0
    while time.monotonic() - began < args.seconds:
        grow(folder, args.workers, number)
        number += 1
        if number % (RATE // 2) == 0:
            sent = sum(len(ask(f"/api/runs/big{part}")) for part in ("", "/curves"))
        time.sleep(max(0.0, began + (number - args.steps) / RATE - time.monotonic()))
    return (spent(pid) - before) / (time.monotonic() - began), sent


if __name__ == "__main__":
    main()
