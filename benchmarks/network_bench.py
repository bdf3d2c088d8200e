"""What `network.py` and `wire.py` share: turns that are taken once and written down, and the way to a dated report."""

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kept import Kept
from network_data import read
from network_job import make_model
from network_turn import Outcome, Turn, TurnError, take
from report import command_line, machine_line

from shoal.bench.contestant import PEER_NAMES, BenchContestant
from shoal.cli.warm import warm
from shoal.core.signals import as_interrupts
from shoal.core.units import BitRate, EventTime, TimeSpan
from shoal.lab.actions import ChangeLinks
from shoal.lab.link import LabLink
from shoal.lab.load import write_lab
from shoal.lab.needs import require
from shoal.lab.spec import HostSpec, LabEvent, LabSpec

DATA_FILES = (Path("mnist/t10k-images-idx3-ubyte.gz"), Path("tinyshakespeare.txt"))


class Bench:
    """All turns, in order: a subclass says which."""

    def __init__(self, args: argparse.Namespace, kept: Kept, facts: dict[str, dict[str, Any]]) -> None:
        self.args, self.kept, self.facts = args, kept, facts
        self.failed = False

    def run(self) -> None:
        raise NotImplementedError

    def turn(self, name: str, model: str, lab: str, hosts: int, **words: Any) -> Turn:
        contestant = BenchContestant(name, peer=name in PEER_NAMES)
        return Turn(contestant=contestant, model=model, lab=lab, workers=hosts, data=self.args.data, **words)

    def take(self, entry: dict[str, Any], turn: Turn, seconds: float) -> Outcome | None:
        """The outcome; None if it is known already, or if it failed, which is written down."""
        if self.kept.has(entry):
            return None
        try:
            return take(turn, seconds)
        except TurnError as error:
            self.failed = True
            self.kept.add({**entry, "steps": [] if entry["kind"] == "turns" else None, "error": str(error)})
            self.say(entry, f"failed: {error}")
            return None

    def say(self, entry: dict[str, Any], words: str) -> None:
        """What came of a turn, in a line."""
        raise NotImplementedError


def lab_text(hosts: int, delay: float, limits: dict[int, int], replay: bool = False) -> str:
    """Hosts with a delay on each link, and from which step on which rate in bits a second; 0 lifts the limit.

    Not from the beginning, or handing out the model would take longest of all. The delay is there from the beginning:
    TCP takes seconds to learn of a longer round trip, of a lower rate far less. `replay`: only communication is real.
    """
    every = (HostSpec(LabLink(delay=TimeSpan.of(delay))),) * hosts
    changes = {step: ChangeLinks(tuple(range(hosts)), rate=BitRate(rate)) for step, rate in limits.items()}
    events = tuple(LabEvent(EventTime(step=step), change) for step, change in changes.items())
    return write_lab(LabSpec(every, compute="replay" if replay else "real", events=events))


def facts_of(model: str, goal: str) -> dict[str, Any]:
    parameters = sum(p.numel() for p in make_model(model).parameters())
    return {"parameters": parameters, "bytes": 4 * parameters, "goal": goal}


def usual_options(parser: argparse.ArgumentParser) -> None:
    """Where data and reports lie, and how much of it is done."""
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="where reports go; else beside the benchmarks")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--quick", action="store_true", help="a little of each, into a temporary folder")


def check_words(parser: argparse.ArgumentParser, args: argparse.Namespace, known: dict[str, Any]) -> None:
    """End with a line if an option names what there is not, or the data is not there. Option -> (given, all)."""
    for option, (given, all_) in known.items():
        if unknown := set(given) - set(all_):
            there = ", ".join(map(str, all_))
            parser.error(f"{option}: unknown {', '.join(map(str, sorted(unknown)))}; there are {there}")
    for name in DATA_FILES:
        if not (args.data / name).is_file():
            parser.error(f"no {name} in {args.data}; give the folder that holds it: --data DIR")


def conduct(
    args: argparse.Namespace,
    name: str,
    make: Callable[[Kept], Bench],
    page: Callable[[dict[str, Any]], str],
    raw: Callable[[Bench], dict[str, Any]],
) -> int:
    """Run it, or go on with it, and write `<date>-<name>.md` and `.json`; the exit code."""
    require()
    torch.set_num_threads(1)
    warm()
    args.out.mkdir(parents=True, exist_ok=True)
    for model in args.models:
        read(model, args.data)
    machine = machine_line()
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "data", "fresh")}
    kept = Kept(args.out / f"{name}.part.jsonl", json.loads(json.dumps(settings)), args.fresh)
    bench = make(kept)
    try:
        with as_interrupts():
            bench.run()
    except KeyboardInterrupt:
        print(f"\nstopped; what was measured is in {kept.path}: the same command goes on from there", file=sys.stderr)
        return 130
    _write(args.out, name, {"command": command_line(), "machine": machine, **raw(bench)}, page)
    kept.path.unlink()  # it has done its duty
    return int(bench.failed)


def _write(out: Path, name: str, raw: dict[str, Any], page: Callable[[dict[str, Any]], str]) -> None:
    stem = out / f"{datetime.date.today():%Y-%m-%d}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page(raw))
    print(f"{page(raw)}\nwritten: {stem.with_suffix('.md')}")
