"""DDP, its hooks and our all-reduce in slow networks: four emulated hosts, two models, eight networks.

    python benchmarks/network.py --data DIR                 the whole table, about half an hour
    python benchmarks/network.py --data DIR --quick         a smoke test, half a minute; writes into a temporary folder

DIR holds `mnist/` (its four gzip files) and `tinyshakespeare.txt`. Every turn is written down at once in
`network.part.jsonl`: a benchmark that was stopped goes on where it was (--fresh begins anew), and leaves no lab behind.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from network_bench import Bench, check_words, conduct, facts_of, lab_text, usual_options
from network_report import FIRST, FLOOR, ideal_seconds, markdown, network_name
from network_turn import Turn

from shoal.bench.peers.ddp import POWER_FROM
from shoal.bench.turns import turns
from shoal.core.units import BitRate, TimeSpan
from shoal.sync.engine.algorithms import tuner

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
WARM = {"cnn": 1 + tuner.WARM + tuner.TRIALS, "transformer": POWER_FROM}
"""Steps of a turn that are not counted. The first two are that before the limit and the first under it, and PowerSGD
compresses neither; between hosts, small models try two ways to add up before they choose one."""
LONG_STEP = 10.0
"""In a step of more seconds than this TCP gets used to the limit, and it counts."""
FEWER = ((30.0, 1), (4.0, 2))
"""Seconds of a turn beyond which it is made only so often."""


class NetworkBench(Bench):
    """Every contestant in every network, then to the goals."""

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
        for repeat, name in turns(self.args.contestants, self.repeats((WARM[model] + steps) * expected)):
            entry = {
                "kind": "turns",
                "model": model,
                "rate": rate,
                "delay": delay,
                "contestant": name,
                "repeat": repeat,
            }
            uncounted = LIMITED_FROM if expected > LONG_STEP and name != "ddp-powersgd" else WARM[model]
            turn = self.in_network(name, model, (rate, delay), steps=uncounted + steps)
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
            turn = self.in_network(name, model, (0, 0.0), steps=steps, epochs=looks, goal=goal, seed=seed)
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
        turn = self.in_network("allreduce", model, (rate, delay), steps=steps, epochs=looks, goal=goal)
        outcome = self.take(entry, turn, 900)
        if outcome:
            self.kept.add({**entry, "steps": outcome.goal_steps, "seconds": outcome.goal_seconds})

    def in_network(self, name: str, model: str, network: tuple[int, float], **words: Any) -> Turn:
        rate, delay = network
        return self.turn(name, model, lab_text(WORKERS, delay, {LIMITED_FROM: rate} if rate else {}), WORKERS, **words)

    def say(self, entry: dict[str, Any], words: str) -> None:
        network = network_name(entry["rate"], entry["delay"]) if "rate" in entry else f"seed {entry['seed']}"
        print(f"{entry['model']:<12} {network:<24} {entry['contestant']:<14} {words}", flush=True)


def parse_network(text: str) -> tuple[int, float]:
    """`100mbit/20ms`, or `none/0ms`."""
    rate, _, delay = text.partition("/")
    return (0 if rate == "none" else BitRate.parse(rate).bits), TimeSpan.parse(delay).seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual_options(parser)
    parser.add_argument("--models", default=",".join(GOALS))
    parser.add_argument("--networks", default=",".join(NETWORKS), help="rate/delay of a link, none/0ms,10mbit/20ms,…")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant in each network")
    parser.add_argument("--seconds", type=float, default=1.5, help="about the length of a turn")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs to a goal; 0: no such runs")
    args = parser.parse_args()
    if args.quick:
        args.models, args.networks, args.contestants = "cnn", "none/0ms,100mbit/5ms", f"{FLOOR},{FIRST},allreduce"
        args.repeats, args.seconds, args.seeds = 1, 1.0, 1
        args.out = args.out or Path(tempfile.mkdtemp(prefix="shoal-network-quick-"))
    args.out = args.out or Path(__file__).parent / "reports"
    args.data = args.data.absolute()
    args.models, args.contestants = args.models.split(","), args.contestants.split(",")
    args.networks = [parse_network(text) for text in args.networks.split(",")]
    check_words(parser, args, {"--models": (args.models, GOALS), "--contestants": (args.contestants, CONTESTANTS)})
    return args


def raw_of(bench: Bench) -> dict[str, Any]:
    kinds = {kind: bench.kept.of(kind) for kind in ("turns", "goals", "checks")}
    return {"workers": WORKERS, "models": bench.facts, "contestants": bench.args.contestants, **kinds}


def main() -> int:
    args = arguments()
    facts = {model: facts_of(model, "accuracy>=0.8" if args.quick else GOALS[model][0]) for model in args.models}
    return conduct(args, "network", lambda kept: NetworkBench(args, kept, facts), markdown, raw_of)


if __name__ == "__main__":
    sys.exit(main())
