"""A whole benchmark: every contestant with every number of workers, in turns, to a report."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.report import BenchReport, with_scaling
from shoal.bench.results import ResultRow, row
from shoal.bench.table import BenchScreen
from shoal.bench.trial import BenchTrial, run_trial
from shoal.bench.turns import turns
from shoal.core import record
from shoal.core.errors import UsageError
from shoal.core.goal import TrainingGoal

Cell = tuple[BenchContestant, int]
RunTrial = Callable[[BenchContestant, TrialOrder, int, TrainingGoal | None, float | None], BenchTrial]


class BenchSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The contestants to measure, and the conditions."""

    script: str
    arguments: tuple[str, ...] = ()
    contestants: tuple[BenchContestant, ...]
    workers: tuple[int, ...] = (2,)
    repeats: int = 5
    until: TrainingGoal | None = None
    seed: int = 0
    other_seeds: bool = False
    """Whether every repeat has a seed of its own."""
    price: float | None = None
    out: Path
    lab: str = ""
    """Emulated hosts, as text or a file; empty: this machine."""
    replayed: bool = False
    """Whether the lab's hosts sleep instead of computing."""
    quiet: bool = False

    def seed_of(self, repeat: int) -> int:
        return self.seed + repeat * self.other_seeds


class BenchSession:
    """Runs one setting. `try_` makes a single run; tests give their own."""

    def __init__(self, setting: BenchSetting, try_: RunTrial = run_trial) -> None:
        self.setting, self._try = setting, try_
        self.cells: list[Cell] = [(c, w) for w in setting.workers for c in setting.contestants]
        self.trials: dict[Cell, list[BenchTrial]] = {cell: [] for cell in self.cells}

    def run(self) -> BenchReport:
        """Every run, one after the other; a contestant that fails stays in, with its failures counted."""
        setting = self.setting
        until = str(setting.until) if setting.until else None
        total = len(self.cells) * setting.repeats
        with BenchScreen(total, until, setting.price is not None, setting.quiet) as screen:
            # In turns, because a machine's speed drifts by more than contestants differ.
            for repeat, cell in turns(self.cells, setting.repeats):
                screen.begins(self.rows(), cell[0].name, cell[1], repeat)
                trial = self._try(cell[0], self._order(cell, repeat), repeat, setting.until, setting.price)
                self.trials[cell].append(trial)
                if trial.exit:
                    screen.failed(trial.error)
        return with_scaling(self._report(until))

    def rows(self) -> list[ResultRow]:
        return [row(*cell, self.trials[cell], self.trials[self._first(cell)]) for cell in self.cells]

    def _first(self, cell: Cell) -> Cell:
        return (self.setting.contestants[0], cell[1])

    def _order(self, cell: Cell, repeat: int) -> TrialOrder:
        setting, (contestant, workers) = self.setting, cell
        return TrialOrder(
            script=setting.script,
            arguments=setting.arguments,
            workers=workers,
            seed=setting.seed_of(repeat),
            runs=setting.out / "runs",
            name=run_name(setting.contestants.index(contestant), contestant.name, workers, repeat),
            lab=setting.lab,
        )

    def _report(self, until: str | None) -> BenchReport:
        setting = self.setting
        return BenchReport(
            script=setting.script,
            arguments=list(setting.arguments),
            command=["shoal", *sys.argv[1:]],
            repeats=setting.repeats,
            seeds=[setting.seed_of(repeat) for repeat in range(setting.repeats)],
            until=until,
            price=setting.price,
            versions=record.versions(),
            machine=record.machine(),
            out=str(setting.out),
            lab=setting.lab,
            replayed=setting.replayed,
            rows=self.rows(),
            exit=int(any(trial.exit for trials in self.trials.values() for trial in trials)),
        )


def run_name(number: int, name: str, workers: int, repeat: int) -> str:
    """An id that says what ran: `1-allreduce-every-1-w2-r0`."""
    # Cut, because an id has at most 64 characters.
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return f"{number}-{word}-w{workers}-r{repeat}"


def open_folder(out: Path) -> None:
    """Refuse a folder that exists: the records of two benchmarks in one folder could not be told apart."""
    try:
        out.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise UsageError(f"--out {str(out)!r} exists already; name a folder that does not") from None
    except OSError as error:
        raise UsageError(f"--out {str(out)!r} cannot be made: {error.strerror}; name another folder") from None


def worker_counts(text: str) -> tuple[int, ...]:
    """`1,2,4`, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--workers {text!r} is not a list of numbers; write 2, or 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in words))
