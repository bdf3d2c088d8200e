"""What the logs of recovery.py's workers say about losses."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One worker made one step."""

    at: float
    number: int
    size: int
    pid: int


@dataclass(frozen=True)
class Recovery:
    """After one loss."""

    seconds: float
    """From the loss to the first step that was made without the lost process, by whoever made it."""
    again: int
    """Steps that had been made and had to be made again."""


def steps(folder: Path, last: int = 1 << 40) -> list[Step]:
    """The steps of all processes in the last so many bytes of their logs, in order of time."""
    found = []
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            cut = max(0, path.stat().st_size - last)
            file.seek(cut)
            lines = file.read().decode().split("\n")[bool(cut) : -1]  # neither half a first one nor half a last one
        for line in lines:
            kind, at, *rest = line.split()
            if kind == "step":
                found.append(Step(float(at), int(rest[0]), int(rest[1]), int(path.stem)))
    return sorted(found, key=lambda step: step.at)


def alive(folder: Path) -> dict[int, int]:
    """Processes that are there, with the rank they began with."""
    found = {}
    for path in folder.glob("*.log"):
        try:
            state = Path(f"/proc/{path.stem}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        first = path.read_text().split("\n")[0].split()
        if state not in "ZX" and len(first) == 3:
            found[int(path.stem)] = int(first[2])
    return found


def recovery(made: Sequence[Step], lost: int, at: float) -> Recovery | None:
    """What the loss of process `lost` at a moment cost; None if nobody has made a step without it yet."""
    before = [step for step in made if step.at <= at]
    known, size = {step.pid for step in before}, before[-1].size if before else 0
    for step in made:
        if step.at > at and step.pid != lost and (step.size != size or step.pid not in known):
            # a process that lived on knows what it has made; where all were started again, all counts
            earlier = [s.number for s in made if s.at < step.at and (s.pid == step.pid or step.pid not in known)]
            return Recovery(step.at - at, max(0, max(earlier, default=0) - step.number + 1))
    return None


def rate(made: Sequence[Step], begin: float, end: float, batch: int) -> float:
    """Samples a second of steps that count: a step that was made again counts once, with the workers it had last."""
    sizes = {step.number: step.size for step in made if begin <= step.at < end}
    return sum(sizes.values()) * batch / (end - begin)


def _firsts(made: Sequence[Step]) -> list[Step]:
    """Each step when it was made first, in order."""
    found: dict[int, Step] = {}
    for step in made:
        found.setdefault(step.number, step)
    return sorted(found.values(), key=lambda step: step.at)


def seconds_of_step(made: Sequence[Step], begin: float, end: float) -> float:
    """Median from one step to the next of all workers together; 0 if there were no two."""
    moments = [step.at for step in _firsts(made) if begin <= step.at < end]
    return statistics.median(b - a for a, b in itertools.pairwise(moments)) if len(moments) > 1 else 0.0


def longest_pause(made: Sequence[Step], begin: float, end: float) -> float:
    """Seconds in which nobody made a step."""
    moments = [begin, *(step.at for step in _firsts(made) if begin <= step.at < end), end]
    return max(b - a for a, b in itertools.pairwise(moments))


def made_again(made: Sequence[Step], begin: float, end: float) -> int:
    """Steps that some process made twice."""
    counts = Counter((step.pid, step.number) for step in made if begin <= step.at < end)
    return sum(count - 1 for count in counts.values())


def standstills(made: Sequence[Step], usual: float) -> list[float]:
    """How much longer than usual the first step with one worker more took, whenever there was one."""
    order = _firsts(made)
    return [max(0.0, b.at - a.at - usual) for a, b in itertools.pairwise(order) if b.size > a.size]


def used(made: Sequence[Step], workers: int) -> tuple[int, int]:
    """Batches lost and used again, where each step deals one to each of so many workers, whoever is there."""
    last = max((step.number for step in made), default=0) - 1  # the newest may not be everywhere yet
    counts = Counter(step.number for step in made if step.number < last)
    lost = sum(workers - count for count in counts.values() if count < workers)
    return lost, sum(count - workers for count in counts.values() if count > workers)
