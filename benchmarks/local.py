"""Agreeing less often in slow networks: DDP, every step, and rounds of local steps, on emulated hosts.

    python benchmarks/local.py --data DIR              MNIST and Shakespeare in two networks, and to a goal: 40 minutes
    python benchmarks/local.py --data DIR --quick      MNIST, one turn each, no goals; about two minutes
    python benchmarks/local.py --data DIR --quick --hosts 8 --replay      eight hosts, whose computing is replayed

DIR holds `mnist/` (its four gzip files) and `tinyshakespeare.txt`. Contestants take turns, and every turn is written
down at once in `local.part.jsonl`: a benchmark that was stopped goes on where it was. Steps to a goal are counted in a
network without a limit, because they do not depend on it; the time to it is that number times the step here.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from network import parse_network
from network_bench import Bench, check_words, conduct, facts_of, lab_text, usual_options
from network_report import ideal_seconds, network_name

from shoal.bench.turns import turns

WORKERS = 4
FLOOR, FIRST, ROUND = "alone", "ddp", 16
DOGWILD = "dogwild"
DILOCO, OVERLAP, AUTO = f"local({ROUND}, diloco)", f"local({ROUND}, diloco, overlap=true)", "local(auto), int8"
CONTESTANTS = (FLOOR, FIRST, "allreduce", "ddp-localsgd", DILOCO, OVERLAP, AUTO, DOGWILD)
GOALS = {"cnn": ("accuracy>=0.97", 2 * ROUND, 40), "transformer": ("loss<=2.6", 2 * ROUND, 10)}
"""The goal, steps between two looks, most looks."""
NETWORKS = ("100mbit/20ms", "10mbit/100ms")
FLOOR_SECONDS = {"cnn": 0.06, "transformer": 0.6}
LIMITED_FROM = 1
EVERY_STEP, IN_ROUNDS, CHOOSING, BY_DATAGRAMS = (3, 3), (ROUND, 2 * ROUND), (40, 128), (100, 100)
"""Steps that are not counted, and that are: where every step travels, in rounds, and where the length is chosen:
after its rounds of 8 and 32 steps; with datagrams from one meeting to the next."""
COLUMNS = ("network", "contestant", "steps", "step ms", "/ DDP", "/ floor", "KB a step", "steps to goal", "s to goal")


class LocalBench(Bench):
    """Every contestant in every network, in turns; then to the goals."""

    def run(self) -> None:
        for model in self.args.models:
            for network in self.args.networks:
                for repeat, name in turns(self.args.contestants, self.args.repeats):
                    self.step_time(model, network, name, repeat)
            for seed, name in turns([n for n in self.args.contestants if n not in (FLOOR, AUTO)], self.args.seeds):
                self.goal(model, name, seed)

    def lab(self, delay: float, limits: dict[int, int]) -> str:
        return lab_text(self.args.hosts, delay, limits, self.args.replay)

    def step_time(self, model: str, network: tuple[int, float], name: str, repeat: int) -> None:
        rate, delay = network
        uncounted, counted = kind_of(name)
        entry = {"kind": "turns", "model": model, "rate": rate, "delay": delay, "contestant": name, "repeat": repeat}
        turn = self.turn(name, model, self.lab(delay, {LIMITED_FROM: rate}), self.args.hosts, steps=uncounted + counted)
        expected = FLOOR_SECONDS[model] + (
            ideal_seconds(self.facts[model]["bytes"], self.args.hosts, rate, delay) or 0.0
        )
        outcome = self.take(entry, turn, 240 + 10 * (uncounted + counted) * expected)
        if outcome:
            seconds, wire = outcome.steps[uncounted:], outcome.wire[uncounted:]
            kept = {"mean": statistics.fmean(seconds), "wire": statistics.fmean(wire), "count": len(seconds)}
            self.kept.add({**entry, **kept, "chose": outcome.chose})
            self.say(entry, f"{1e3 * kept['mean']:9.1f} ms a step")

    def goal(self, model: str, name: str, seed: int) -> None:
        goal, steps, looks = GOALS[model]
        entry = {"kind": "goals", "model": model, "contestant": name, "seed": seed}
        turn = self.turn(
            name, model, self.lab(0.0, {}), self.args.hosts, steps=steps, epochs=looks, goal=goal, seed=seed
        )
        outcome = self.take(entry, turn, 900)
        if outcome:
            self.kept.add({**entry, "steps": outcome.goal_steps, "most": steps * looks})
            self.say(entry, f"{outcome.goal_steps or 'more than ' + str(steps * looks)} steps to {goal}")

    def say(self, entry: dict[str, Any], words: str) -> None:
        network = network_name(entry["rate"], entry["delay"]) if "rate" in entry else f"seed {entry['seed']}"
        print(f"{entry['model']:<12} {network:<26} {entry['contestant']:<32} {words}", flush=True)


def kind_of(name: str) -> tuple[int, int]:
    """Steps of a turn that are not counted, and that are. A floor's are as those of rounds."""
    if name in (AUTO, DOGWILD):
        return CHOOSING if name == AUTO else BY_DATAGRAMS
    return IN_ROUNDS if name == FLOOR or "local" in name else EVERY_STEP


def markdown(raw: dict[str, Any]) -> str:
    lines = ["# Agreeing less often in slow networks", f"    {raw['command']}", raw["machine"], ABOUT]
    lines += [OF_DATAGRAMS] if DOGWILD in raw["contestants"] else []
    for model, facts in raw["models"].items():
        lines.append(f"## {model}: {facts['parameters']:,} parameters, {raw['workers']} hosts; goal {facts['goal']}")
        lines.append("\n".join(table(raw, model)))
    return "\n\n".join(lines) + "\n"


ABOUT = (
    "A step is the mean over the counted steps of all turns, exchanges included; KB are what a worker puts on sockets. "
    "`alone` is the floor: no communication."
)
OF_DATAGRAMS = "Datagrams of `dogwild` are not among the bytes."


def table(raw: dict[str, Any], model: str) -> list[str]:
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    mine = [turn for turn in raw["turns"] if turn["model"] == model and turn.get("mean")]
    for network in dict.fromkeys((turn["rate"], turn["delay"]) for turn in mine):
        here = [turn for turn in mine if (turn["rate"], turn["delay"]) == network]
        means = {name: statistics.median([t["mean"] for t in here if t["contestant"] == name])
                 for name in raw["contestants"] if any(t["contestant"] == name for t in here)}  # fmt: skip
        for name, mean in means.items():
            found = [turn for turn in here if turn["contestant"] == name]
            to_goal = steps_to_goal(raw, model, name)
            rows.append([
                network_name(*network), f"`{name}`", f"{len(found)} × {found[0]['count']}", f"{1e3 * mean:.0f}",
                ratio(mean, means.get(FIRST)), ratio(mean, means.get(FLOOR)),
                f"{statistics.fmean([turn['wire'] for turn in found]) / 1e3:.1f}",
                "" if to_goal is None else f"{to_goal:.0f}", "" if to_goal is None else f"{to_goal * mean:.0f}",
            ])  # fmt: skip
    return [f"| {' | '.join(row)} |" for row in rows]


def ratio(mean: float, other: float | None) -> str:
    return f"{mean / other:.3f}" if other else ""


def steps_to_goal(raw: dict[str, Any], model: str, name: str) -> float | None:
    """Median over seeds; of every(1) DDP's count, which it equals; None if one has not come to it."""
    found = [g["steps"] for g in raw["goals"] if (g["model"], g["contestant"]) == (model, name)]
    return statistics.median(found) if found and None not in found else None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual_options(parser)
    parser.add_argument("--models", default=",".join(GOALS))
    parser.add_argument("--networks", default=",".join(NETWORKS), help="rate/delay of a link, 10mbit/100ms,…")
    parser.add_argument("--contestants", default=";".join(CONTESTANTS), help="with ; between them")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant in each network")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs to a goal; 0: no such runs")
    parser.add_argument("--hosts", type=int, default=WORKERS)
    parser.add_argument("--replay", action="store_true", help="more hosts than cores: steps take their recorded time")
    args = parser.parse_args()
    if args.hosts < 2 or (args.replay and args.seeds and not args.quick):
        parser.error(f"--hosts {args.hosts}: 2 or more; --replay computes nothing, so it takes --seeds 0 or --quick")
    if args.quick:
        args.models, args.repeats, args.seeds = "cnn", 1, 0
        args.contestants = ";".join(name for name in CONTESTANTS if name != "ddp-localsgd")
        args.out = args.out or Path(tempfile.mkdtemp(prefix="shoal-local-quick-"))
    args.out = args.out or Path(__file__).parent / "reports"
    args.data = args.data.absolute()
    args.models = args.models.split(",")
    args.contestants = [name.strip() for name in args.contestants.split(";")]
    args.networks = [parse_network(text) for text in args.networks.split(",")]
    check_words(parser, args, {"--models": (args.models, GOALS), "--contestants": (args.contestants, CONTESTANTS)})
    return args


def raw_of(bench: Bench) -> dict[str, Any]:
    kinds = {kind: bench.kept.of(kind) for kind in ("turns", "goals")}
    return {"workers": bench.args.hosts, "models": bench.facts, "contestants": bench.args.contestants, **kinds}


def main() -> int:
    args = arguments()
    facts = {model: facts_of(model, GOALS[model][0]) for model in args.models}
    return conduct(args, "local", lambda kept: LocalBench(args, kept, facts), markdown, raw_of)


if __name__ == "__main__":
    sys.exit(main())
