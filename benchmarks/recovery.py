"""What a loss costs: kills at random moments, a frozen worker, a frozen coordinator, and one kill after another.

    python benchmarks/recovery.py [--quick] [--lab "4 hosts, 100mbit"] [--peers torchrun] [--seed 0]

Four workers train a model of a million parameters, under Shoal and then under torchrun with checkpoints, each alone on
the machine. A loss is over with the first step that is made without the lost worker. Goodput: samples a second that
count, with a kill every 15 s, against the same training left in peace, just before.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import recovery_log
from recovery_contestants import CHECKPOINT, Contestant, Ended, Shoal, Torchrun, samples_of
from recovery_model import BATCH
from report import Table, machine_line, write_report

LATELY = 1 << 16
"""Bytes of each log that tell enough of a loss that has just been."""
PEERS: dict[str, type[Contestant]] = {"torchrun": Torchrun}


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    kills: int = 20
    freezes: int = 3
    outage: float = 60.0
    """Seconds the coordinator is frozen."""
    calm: float = 60.0
    churn: float = 600.0
    every: float = 15.0
    """Seconds between two kills."""


QUICK = Amount(kills=2, freezes=1, outage=4.0, calm=4.0, churn=12.0, every=4.0)


def lose(one: Contestant, chance: random.Random, number: signal.Signals) -> tuple[recovery_log.Recovery, float, float]:
    """Send a random worker a signal at a random moment; what that cost, and when, by both clocks."""
    time.sleep(chance.uniform(0.0, 1.0))
    pid = chance.choice(sorted(recovery_log.alive(one.logs)))
    at, wall = time.monotonic(), time.time()
    os.kill(pid, number)
    found: list[recovery_log.Recovery] = []

    def over() -> bool:
        found[:] = filter(None, [recovery_log.recovery(recovery_log.steps(one.logs, LATELY), pid, at)])
        return bool(found)

    one.wait("a step without the lost worker", over)
    if number == signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    one.whole(time.monotonic())
    return found[0], at, wall


def churn(one: Contestant, chance: random.Random, amount: Amount) -> float:
    """Goodput with one kill after another."""
    began = time.monotonic()
    kill_at = began + amount.every / 2
    while time.monotonic() < began + amount.churn:
        one.check()
        alive = sorted(recovery_log.alive(one.logs))
        if time.monotonic() >= kill_at and alive:
            kill_at += amount.every
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(alive), signal.SIGKILL)
        time.sleep(0.05)
    return recovery_log.rate(recovery_log.steps(one.logs), began, began + amount.churn, BATCH)


def outage(one: Shoal, seconds: float) -> float:
    """The rate while the coordinator is frozen."""
    pid = one.coordinator()
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        return recovery_log.rate(recovery_log.steps(one.logs), began, time.monotonic(), BATCH)
    finally:
        os.kill(pid, signal.SIGCONT)


def measure(one: Contestant, amount: Amount, seed: int) -> dict[str, str]:
    """A column of the table. What a contestant does not survive ends its column, with what it said."""
    chance, cells = random.Random(seed), dict[str, str]()
    try:
        with one:
            one.whole(0.0)
            losses = [lose(one, chance, signal.SIGKILL) for _ in range(amount.kills)]
            cells |= of_kills(one, losses)
            if isinstance(one, Shoal):
                frozen = [lose(one, chance, signal.SIGSTOP)[0].seconds for _ in range(amount.freezes)]
                cells["a worker frozen: others go on, worst, s"] = f"{max(frozen):.2f}"
            began = time.monotonic()
            time.sleep(amount.calm)
            calm = recovery_log.rate(recovery_log.steps(one.logs), began, time.monotonic(), BATCH)
            if isinstance(one, Shoal):
                before = len(one.noticed())
                kept = outage(one, amount.outage) / calm
                cells[f"coordinator frozen {amount.outage:.0f} s: rate, losses"] = (
                    f"{kept:.0%}, {len(one.noticed()) - before}"
                )
            cells[f"a kill every {amount.every:.0f} s for {amount.churn:.0f} s: goodput"] = (
                f"{churn(one, chance, amount) / calm:.0%}"
            )
        if isinstance(one, Shoal):
            finished, missing, doubled = one.ledger()
            cells["samples lost, doubled"] = f"{missing}, {doubled} ({finished} epochs)"
    except Ended as error:
        cells["ended"] = str(error)[:200]
    return cells


def of_kills(one: Contestant, losses: list[tuple[recovery_log.Recovery, float, float]]) -> dict[str, str]:
    seconds, again = [loss.seconds for loss, _, _ in losses], [loss.again for loss, _, _ in losses]
    cells = {
        "kills": str(len(losses)),
        "others commit again: median, worst, s": f"{statistics.median(seconds):.2f}, {max(seconds):.2f}",
        "steps made again: median, worst": f"{statistics.median(again):.0f}, {max(again)}",
        "samples lost, doubled": f"0, {samples_of(sum(again), one.workers)}",
    }
    if isinstance(one, Shoal):
        walls = [wall for _, _, wall in losses]
        seen = [min(at for at, _ in one.noticed() if at >= wall) - wall for wall in walls]
        cells["launcher notices: median, worst, s"] = f"{statistics.median(seen):.3f}, {max(seen):.3f}"
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds of each, to see that it works")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lab", default="", help="emulated hosts, one for each worker")
    parser.add_argument("--peers", default="torchrun", help="of: " + ", ".join(PEERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, help="how many single kills; else 20")
    parser.add_argument("--churn", type=float, help="seconds with a kill every 15; else 600")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "reports")
    args = parser.parse_args()
    amount = QUICK if args.quick else Amount(kills=args.kills or Amount.kills, churn=args.churn or Amount.churn)
    machine = machine_line()
    kinds = [Shoal, *(PEERS[name] for name in args.peers.split(",") if name)]
    columns = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="shoal-recovery-") as folder:
            columns[kind.name] = measure(kind(args.workers, args.lab, Path(folder).resolve()), amount, args.seed)
        print(f"{kind.name}: {columns[kind.name]}", flush=True)
    table = Table(f"{args.workers} workers, {args.lab or 'one host'}", *columns)
    for row in dict.fromkeys(name for column in columns.values() for name in column):
        table.add(row, *(column.get(row, "–") for column in columns.values()))
    write_report(
        args.out,
        "recovery-quick" if args.quick else "recovery",
        "What the loss of a worker costs",
        [
            "Random workers get SIGKILL at random moments, each when all train again; 1.07 M parameters, batch 32.",
            "Commit again: from the signal to the first step that was made without the lost worker. "
            "Made again: steps that were made before, and had to be repeated. "
            "Goodput: samples a second that count, against the same training in peace.",
            f"torchrun: DDP over gloo, all workers started again, from a checkpoint every {CHECKPOINT:.0f} s.",
            machine,
        ],
        table,
    )


if __name__ == "__main__":
    main()
