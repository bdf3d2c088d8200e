"""One turn of one contestant of `network.py` or `wire.py`: a run in a lab.

It runs in a child of a process that has imported torch already: what `shoal run` and `python -m shoal.bench.peer` do,
without their seconds of imports. The child dies with its parent, and the lab with the child, however either ends.
"""

import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.bench import peer
from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.measure import curve, seconds_to
from shoal.cli.main import main
from shoal.core.clock import Deadline
from shoal.core.events import ChoiceMade, ResultsReported, StepFinished
from shoal.core.goal import UNTIL_VARIABLE, TrainingGoal
from shoal.core.record import run_dir
from shoal.watch.record import RunRecord

SCRIPT = Path(__file__).parent / "network_job.py"
PDEATHSIG = 1
LAST_WORDS = 2000


class TurnError(Exception):
    """The run failed; the message is its last line."""


@dataclass(frozen=True)
class Turn:
    """What is to be run."""

    contestant: BenchContestant
    model: str
    lab: str
    """The text of a lab, short or TOML."""
    workers: int
    data: Path
    steps: int
    epochs: int = 0
    goal: str = ""
    seed: int = 0
    momentum: float | None = None
    """SGD with this momentum; None: AdamW."""

    def order(self, runs: Path) -> TrialOrder:
        arguments = ("--model", self.model, "--data", str(self.data), "--steps", str(self.steps))
        arguments += ("--epochs", str(self.epochs)) if self.epochs else ()
        arguments += ("--momentum", str(self.momentum)) if self.momentum is not None else ()
        return TrialOrder(
            script=str(SCRIPT),
            arguments=arguments,
            workers=self.workers,
            seed=self.seed,
            runs=runs,
            name="turn",
            lab=self.lab,
        )


@dataclass(frozen=True)
class Outcome:
    """What its record says."""

    steps: list[float]
    """Seconds of every step, each the mean over the workers."""
    wire: list[float]
    """Bytes a worker put on sockets in every step, each the mean over the workers."""
    reports: list[tuple[int, dict[str, float]]]
    """Steps before each report of worker 0, and what it says."""
    chose: str | None = None
    """The codec that `wire(auto)` took; empty: none."""
    goal_steps: int | None = None
    """Steps before the first report that is good enough."""
    goal_seconds: float | None = None


def take(turn: Turn, seconds: float) -> Outcome:
    """Run it and read its record; TurnError if it fails or takes longer than `seconds`."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-network-"))
    try:
        order = turn.order(folder)
        words = turn.contestant.command(order)[3:]  # without the interpreter, -m and the module
        body = (lambda: sys.exit(peer.main(words))) if turn.contestant.peer else (lambda: main(words))
        _run(body, turn.goal, folder / "said", seconds)
        return _read(RunRecord.open(run_dir(folder, order.name)), turn)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(record: RunRecord, turn: Turn) -> Outcome:
    events = [list(record.events(rank)) for rank in record.ranks]
    steps = [[event for event in own if isinstance(event, StepFinished)] for own in events]
    each = list(zip(*steps, strict=True))
    reports = [(event.step, event.metrics) for event in events[0] if isinstance(event, ResultsReported)]
    outcome = Outcome(
        steps=[_mean([step.seconds for step in workers]) for workers in each],
        wire=[_mean([step.wire for step in workers]) for workers in each],
        reports=reports,
        chose=next((event.codec for event in events[0] if isinstance(event, ChoiceMade)), None),
    )
    if not turn.goal:
        return outcome
    goal = TrainingGoal.parse(turn.goal)
    reached = next((step for step, metrics in reports if goal.met(metrics)), None)
    return replace(outcome, goal_steps=reached, goal_seconds=seconds_to(goal, curve(events[0])))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _run(body: Callable[[], None], goal: str, said: Path, seconds: float) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(body, goal, said, parent)
    try:
        code = _wait(pid, seconds)
    except KeyboardInterrupt:
        with suppress(TurnError, ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # its launcher ends workers and lab
            _wait(pid, 30.0)
        raise
    if code:
        lines = said.read_text(errors="replace")[-LAST_WORDS:].strip().splitlines()
        raise TurnError(lines[-1] if lines else f"exit code {code} without a word")


def _child(body: Callable[[], None], goal: str, said: Path, parent: int) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before it could be tied to
            os._exit(1)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ[UNTIL_VARIABLE] = goal
        body()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, seconds: float) -> int:
    deadline = Deadline.after(seconds)
    while not deadline.expired:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)  # the lab's reaper cleans up behind it
    os.waitpid(pid, 0)
    raise TurnError(f"not done after {seconds:.0f} s")
