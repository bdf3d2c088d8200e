"""What recovery.py does to a contestant, each time to one that was just started, and the raw figures of it.

kills         random workers get SIGKILL at random moments, each when all train again
freezes       the same with SIGSTOP
coordinator   whoever says who takes part is stopped for a while
goodput       one kill after another, against the same training left in peace just before
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import recovery_log
from recovery_contestants import Contestant
from recovery_model import BATCH

from shoal.core.process import HostProcess

LATELY = 1 << 16
"""Bytes of each log that tell enough of a loss that has just been."""
BEFORE = 20.0
"""Seconds before a loss of whose steps the median is taken."""
Entry = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    kills: int = 20
    freezes: int = 5
    outage: float = 60.0
    """Seconds the coordinator is stopped."""
    calm: float = 60.0
    churn: float = 600.0
    every: float = 15.0
    """Seconds between two kills."""


QUICK = Amount(kills=2, freezes=1, outage=4.0, calm=4.0, churn=12.0, every=4.0)


def lose(one: Contestant, chance: random.Random, number: signal.Signals) -> Entry:
    """Send a random worker a signal at a random moment; what that cost, and when it was noticed."""
    time.sleep(chance.uniform(0.0, 1.0))
    pid = chance.choice(sorted(recovery_log.alive(one.logs)))
    at, wall = time.monotonic(), time.time()
    step = recovery_log.seconds_of_step(recovery_log.steps(one.logs, LATELY), at - BEFORE, at)
    victim = HostProcess.of(pid)
    victim.send(number)
    found: list[recovery_log.Recovery] = []

    def over() -> bool:
        found[:] = filter(None, [recovery_log.recovery(recovery_log.steps(one.logs, LATELY), pid, at)])
        return bool(found)

    one.wait("a step without the lost worker", over)
    if number == signal.SIGSTOP:
        victim.send(signal.SIGKILL)  # unless its launcher has ended it: then another may have its number
    one.whole(time.monotonic())
    noticed = [each - wall for each in one.noticed() if each >= wall]
    entry = {"seconds": round(found[0].seconds, 3), "again": found[0].again, "step": round(step, 3)}
    entry["noticed"] = round(min(noticed), 3) if noticed else None
    print(f"{one.name}: {number.name}: {entry}", flush=True)
    return entry


def kills(one: Contestant, chance: random.Random, amount: Amount) -> Entry:
    return {"losses": [lose(one, chance, signal.SIGKILL) for _ in range(amount.kills)]}


def freezes(one: Contestant, chance: random.Random, amount: Amount) -> Entry:
    return {"losses": [lose(one, chance, signal.SIGSTOP) for _ in range(amount.freezes)]}


def calm(one: Contestant, seconds: float) -> tuple[float, float]:
    """Samples a second, and seconds of a step, when nothing happens."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        one.check()
        time.sleep(0.05)
    made = recovery_log.steps(one.logs)
    return recovery_log.rate(made, began, began + seconds, BATCH), recovery_log.seconds_of_step(
        made, began, began + seconds
    )


def coordinator(one: Contestant, chance: random.Random, amount: Amount) -> Entry:
    before, step = calm(one, amount.calm)
    pid, losses, began = one.coordinator(), len(one.noticed()), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(amount.outage)
    finally:
        os.kill(pid, signal.SIGCONT)
    ended = time.monotonic()
    one.whole(ended)
    made = recovery_log.steps(one.logs)
    return {
        "outage": amount.outage,
        "step": round(step, 3),
        "calm": round(before, 2),
        "during": round(recovery_log.rate(made, began, ended, BATCH), 2),
        "pause": round(recovery_log.longest_pause(made, began, ended), 3),
        "losses": len(one.noticed()) - losses,
        "again": recovery_log.made_again(made, began, time.monotonic()),
    }


def goodput(one: Contestant, chance: random.Random, amount: Amount) -> Entry:
    before, step = calm(one, amount.calm)
    began, killed = time.monotonic(), 0
    kill_at = began + amount.every / 2
    while time.monotonic() < began + amount.churn:
        one.check()
        alive = sorted(recovery_log.alive(one.logs))
        if time.monotonic() >= kill_at and alive:
            kill_at += amount.every
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(alive), signal.SIGKILL)
                killed += 1
        time.sleep(0.05)
    made = recovery_log.steps(one.logs)
    after = [step for step in made if began <= step.at < began + amount.churn]
    return {
        "churn": amount.churn,
        "every": amount.every,
        "kills": killed,
        "step": round(step, 3),
        "calm": round(before, 2),
        "during": round(recovery_log.rate(made, began, began + amount.churn, BATCH), 2),
        "standstills": [round(each, 3) for each in recovery_log.standstills(after, step)],
    }


PARTS: dict[str, Callable[[Contestant, random.Random, Amount], Entry]] = {
    "kills": kills,
    "freezes": freezes,
    "coordinator": coordinator,
    "goodput": goodput,
}
