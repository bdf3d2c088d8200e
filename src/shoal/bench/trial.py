"""One contestant, once: a process of its own, its record read, its processor time taken."""

import os
import resource
import subprocess
from pathlib import Path

import msgspec

import shoal
from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.measure import RunMeasurement, measure, seconds_to
from shoal.core.events import LATENCY_VARIABLE
from shoal.core.goal import UNTIL_VARIABLE, TrainingGoal
from shoal.core.record import run_dir
from shoal.watch.record import RunRecord

LONGEST_RUN = 24 * 3600.0
LONGEST_ERROR = 2000


class BenchTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run; for a failed one only the reason."""

    repeat: int
    seed: int
    run: str
    exit: int
    error: str = ""
    measured: RunMeasurement | None = None
    cpu_seconds: float = 0.0
    """Processor time of all its processes, start-up included."""
    goal_seconds: float | None = None
    """Training seconds to the goal; None if there was none or it was not reached."""
    cost: float | None = None
    """Price of its cores, for the time to the goal, or for all of the training without one."""


def run_trial(
    contestant: BenchContestant, order: TrialOrder, repeat: int, goal: TrainingGoal | None, price: float | None
) -> BenchTrial:
    # Counts every child that has ended since, so trials must not overlap.
    before = _children_seconds()
    done = subprocess.run(
        contestant.command(order),
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(goal),
        timeout=LONGEST_RUN,
        check=False,
    )
    spent = _children_seconds() - before
    trial = BenchTrial(repeat=repeat, seed=order.seed, run=order.name, exit=done.returncode, cpu_seconds=spent)
    if done.returncode:
        # The end, because that is where the error stands.
        return msgspec.structs.replace(trial, error=done.stderr.strip()[-LONGEST_ERROR:])
    return complete(trial, measure(RunRecord.open(run_dir(order.runs, order.name))), goal, price)


def complete(trial: BenchTrial, measured: RunMeasurement, goal: TrainingGoal | None, price: float | None) -> BenchTrial:
    """The trial with what its record says."""
    reached = seconds_to(goal, measured.curve) if goal else None
    paid = reached if goal else measured.seconds
    cost = None if price is None or paid is None else price * measured.cores * paid / 3600
    return msgspec.structs.replace(trial, measured=measured, goal_seconds=reached, cost=cost)


def environment(goal: TrainingGoal | None) -> dict[str, str]:
    """This process's own, with this very Shoal first, the goal that ends the training, the model timed in the end."""
    # Without registering: a trial's model must not become a version in the user's registry.
    env = os.environ | {UNTIL_VARIABLE: str(goal) if goal else "", LATENCY_VARIABLE: "1", "SHOAL_REGISTER": "0"}
    here = str(Path(next(iter(shoal.__path__))).parent)
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, (here, env.get("PYTHONPATH"))))}


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
