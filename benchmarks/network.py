"""DDP, its hooks and our all-reduce in slow networks: four emulated hosts, two models, eight networks.

    python benchmarks/network.py --data DIR                 the whole table, about half an hour
    python benchmarks/network.py --data DIR --quick         a smoke test, half a minute; writes into a temporary folder

DIR holds `mnist/` (its four gzip files) and `tinyshakespeare.txt`. Every turn is written down at once in
`network.part.jsonl`: a benchmark that was stopped goes on where it was (--fresh begins anew), and leaves no lab behind.
"""

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from network_data import read
from network_job import make_model
from network_report import FIRST, FLOOR, ideal_seconds, markdown, network_name
from network_turn import Turn, TurnError, take
from report import machine_line

from shoal.bench.contestant import PEER_NAMES, Contestant
from shoal.bench.peers.ddp import POWER_FROM
from shoal.bench.turns import turns
from shoal.cli.prepare import warm
from shoal.cluster.lab.actions import Change
from shoal.cluster.lab.link import Link
from shoal.cluster.lab.needs import require
from shoal.cluster.lab.spec import Event, HostSpec, Spec
from shoal.cluster.lab.units import Delay, Moment, Rate
from shoal.cluster.launch.signals import as_interrupts

WORKERS = 4
PLANS = (FLOOR, "allreduce")
CONTESTANTS = (FLOOR, FIRST, "ddp-fp16", "ddp-powersgd", "allreduce")
NETWORKS = tuple(f"{rate}/{delay}" for rate in ("none", "1gbit", "100mbit", "10mbit") for delay in ("0ms", "20ms"))
GOALS = {"cnn": ("accuracy>=0.97", 10, 60), "transformer": ("loss<=2.6", 5, 20)}
"""The goal, steps between two looks, most looks."""
FLOOR_SECONDS = {"cnn": 0.06, "transformer": 0.6}
"""About what a step takes without a network: only to choose how many steps a turn has."""
LEAST, MOST = 2, 40
LIMITED_FROM = 1
WARM = POWER_FROM
"""Steps of a turn that are not counted: that before the limit, the first under it; PowerSGD compresses neither."""
LONG_STEP = 10.0
"""In a step of more seconds than this TCP gets used to the limit, and it counts."""
FEWER = ((30.0, 1), (4.0, 2))
"""Seconds of a turn beyond which it is made only so often."""


class Kept:
    """What was measured so far, in a file that survives whatever ends the benchmark."""

    def __init__(self, path: Path, settings: dict[str, Any], fresh: bool) -> None:
        self.path, self.entries = path, [{"kind": "settings", **settings}]
        if path.exists() and not fresh:
            found = [entry for line in path.read_text().splitlines() if (entry := _parsed(line))]
            if found[:1] != self.entries:
                sys.exit(f"{path} was begun with other options; repeat those, or begin anew with --fresh")
            self.entries = found
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))  # without a torn last line

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def has(self, entry: dict[str, Any]) -> bool:
        """Whether a good result stands there for what `entry` names."""
        return any(entry.items() <= other.items() and not other.get("error") for other in self.entries)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All of one kind, without those that failed and were made good later."""
        found = [{k: v for k, v in entry.items() if k != "kind"} for entry in self.entries if entry["kind"] == kind]
        return [entry for entry in found if not entry.get("error") or not self._made_good(kind, entry)]

    def _made_good(self, kind: str, entry: dict[str, Any]) -> bool:
        names = ("model", "rate", "delay", "contestant", "repeat", "seed")
        return self.has({"kind": kind, **{name: entry[name] for name in names if name in entry}})


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "kind" in entry else None


class Bench:
    """All turns, in order."""

    def __init__(self, args: argparse.Namespace, kept: Kept, facts: dict[str, dict[str, Any]]) -> None:
        self.args, self.kept, self.facts = args, kept, facts
        self.failed = False

    def run(self) -> None:
        for model in self.args.models:
            for network in self.args.networks:
                self.network(model, *network)
            self.goals(model)
        self.check()

    def network(self, model: str, rate: int, delay: float) -> None:
        ideal = ideal_seconds(self.facts[model]["bytes"], WORKERS, rate, delay)
        expected = FLOOR_SECONDS[model] + (ideal or 4 * (WORKERS - 1) * delay)
        steps = max(LEAST, min(MOST, int(self.args.seconds / expected)))
        for repeat, name in turns(self.args.contestants, self.repeats((WARM + steps) * expected)):
            entry = {
                "kind": "turns",
                "model": model,
                "rate": rate,
                "delay": delay,
                "contestant": name,
                "repeat": repeat,
            }
            uncounted = LIMITED_FROM if expected > LONG_STEP and name != "ddp-powersgd" else WARM
            turn = self.turn(name, model, (rate, delay), steps=uncounted + steps)
            outcome = self.take(entry, turn, 120 + 10 * (uncounted + steps) * expected)
            if outcome:
                kept = [round(seconds, 6) for seconds in outcome.steps[uncounted:]]
                self.kept.add({**entry, "steps": kept})
                self.say(entry, f"{sorted(kept)[len(kept) // 2] * 1e3:9.1f} ms a step")

    def repeats(self, seconds: float) -> int:
        """Fewer of long turns, which vary less: their time is the network's."""
        fewer = next((number for longest, number in FEWER if seconds > longest), self.args.repeats)
        return min(fewer, self.args.repeats)

    def goals(self, model: str) -> None:
        goal, steps, looks = self.facts[model]["goal"], *GOALS[model][1:]
        for seed, name in turns([name for name in self.args.contestants if name != FLOOR], self.args.seeds):
            entry = {"kind": "goals", "model": model, "contestant": name, "seed": seed}
            turn = self.turn(name, model, (0, 0.0), steps=steps, epochs=looks, goal=goal, seed=seed)
            outcome = self.take(entry, turn, 900)
            if outcome:
                self.kept.add({**entry, "steps": outcome.goal_steps, "most": steps * looks})
                self.say(entry, f"{outcome.goal_steps or 'more than ' + str(steps * looks)} steps to {goal}")

    def check(self) -> None:
        """One run to the goal in a slow network, to hold the table's arithmetic against."""
        slow = [network for network in self.args.networks if network[0]]
        if not slow or not self.args.seeds or "allreduce" not in self.args.contestants:
            return
        model, (rate, delay) = self.args.models[0], slow[len(slow) // 2]
        entry = {"kind": "checks", "model": model, "rate": rate, "delay": delay, "contestant": "allreduce", "seed": 0}
        goal, steps, looks = self.facts[model]["goal"], *GOALS[model][1:]
        turn = self.turn("allreduce", model, (rate, delay), steps=steps, epochs=looks, goal=goal)
        outcome = self.take(entry, turn, 900)
        if outcome:
            self.kept.add({**entry, "steps": outcome.goal_steps, "seconds": outcome.goal_seconds})

    def turn(self, name: str, model: str, network: tuple[int, float], **words: Any) -> Turn:
        return Turn(
            contestant=Contestant(name, peer=name in PEER_NAMES),
            model=model,
            lab=lab_text(*network),
            workers=WORKERS,
            data=self.args.data,
            **words,
        )

    def take(self, entry: dict[str, Any], turn: Turn, seconds: float) -> Any:
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
        network = network_name(entry["rate"], entry["delay"]) if "rate" in entry else f"seed {entry['seed']}"
        print(f"{entry['model']:<12} {network:<24} {entry['contestant']:<14} {words}", flush=True)


def lab_text(rate: int, delay: float) -> str:
    """Four hosts. The rate is limited from the second step on, or handing out the model would take longest of all.

    The delay is there from the beginning: TCP takes seconds to learn of a longer round trip, of a lower rate far less.
    """
    every = (HostSpec(Link(delay=Delay.of(delay))),) * WORKERS
    limit = Event(Moment(step=LIMITED_FROM), Change(tuple(range(WORKERS)), rate=Rate(rate)))
    return str(Spec(every, events=(limit,) if rate else ()))


def parse_network(text: str) -> tuple[int, float]:
    """`100mbit/20ms`, or `none/0ms`."""
    rate, _, delay = text.partition("/")
    return (0 if rate == "none" else Rate.parse(rate).bits), Delay.parse(delay).seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", default=",".join(GOALS))
    parser.add_argument("--networks", default=",".join(NETWORKS), help="rate/delay of a link, none/0ms,10mbit/20ms,…")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant in each network")
    parser.add_argument("--seconds", type=float, default=1.5, help="about the length of a turn")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs to a goal; 0: no such runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.models, args.networks, args.contestants = "cnn", "none/0ms,100mbit/5ms", f"{FLOOR},{FIRST},allreduce"
        args.repeats, args.seconds, args.seeds = 1, 1.0, 1
        args.out = args.out or Path(tempfile.mkdtemp(prefix="shoal-network-quick-"))
    args.out = args.out or Path(__file__).parent / "reports"
    args.data = args.data.absolute()
    args.models, args.contestants = args.models.split(","), args.contestants.split(",")
    args.networks = [parse_network(text) for text in args.networks.split(",")]
    known = {"--models": (args.models, GOALS), "--contestants": (args.contestants, CONTESTANTS)}
    for option, (given, all_) in known.items():
        if unknown := set(given) - set(all_):
            parser.error(f"{option}: unknown {', '.join(sorted(unknown))}; there are {', '.join(all_)}")
    for name in [Path("mnist/t10k-images-idx3-ubyte.gz"), Path("tinyshakespeare.txt")]:
        if not (args.data / name).is_file():
            parser.error(f"no {name} in {args.data}; give the folder that holds it: --data DIR")
    return args


def facts_of(model: str, quick: bool) -> dict[str, Any]:
    parameters = sum(p.numel() for p in make_model(model).parameters())
    goal = "accuracy>=0.8" if quick else GOALS[model][0]
    return {"parameters": parameters, "bytes": 4 * parameters, "goal": goal}


def write(args: argparse.Namespace, kept: Kept, facts: dict[str, Any], machine: str) -> None:
    """The dated report; the file of turns has done its duty."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_without_paths(sys.argv[1:])])
    raw = {
        "command": command,
        "machine": machine,
        "workers": WORKERS,
        "models": facts,
        "contestants": args.contestants,
        **{kind: kept.of(kind) for kind in ("turns", "goals", "checks")},
    }
    stem = args.out / f"{datetime.date.today():%Y-%m-%d}-network"
    stem.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(raw))
    kept.path.unlink()
    print(f"{markdown(raw)}\nwritten: {stem.with_suffix('.md')}")


def _without_paths(words: list[str]) -> list[str]:
    """Where the data lay is nobody's business."""
    return ["DIR" if before in ("--data", "--out") else word for before, word in zip(["", *words], words, strict=False)]


def main() -> int:
    args = arguments()
    require()
    torch.set_num_threads(1)
    warm()
    args.out.mkdir(parents=True, exist_ok=True)
    for model in args.models:
        read(model, args.data)
    machine, facts = machine_line(), {model: facts_of(model, args.quick) for model in args.models}
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "data", "fresh")}
    kept = Kept(args.out / "network.part.jsonl", json.loads(json.dumps(settings)), args.fresh)
    bench = Bench(args, kept, facts)
    try:
        with as_interrupts():
            bench.run()
    except KeyboardInterrupt:
        print(f"\nstopped; what was measured is in {kept.path}: the same command goes on from there", file=sys.stderr)
        return 130
    write(args, kept, facts, machine)
    return int(bench.failed)


if __name__ == "__main__":
    sys.exit(main())
