"""The turns of `wire.py`: through all rates, then some steps for an accuracy, then to a goal."""

import statistics
from typing import Any

from network_bench import Bench, lab_text
from network_report import FIRST, FLOOR, network_name
from network_turn import Outcome, Turn
from wire_marks import GOAL_HOSTS, GOAL_MODEL, SLOW, contenders, seen_with
from wire_stages import AUTO, LIMITED_FROM, Cell, Stage, limits_of, sliced

from shoal.bench.turns import turns

GOAL_CONTESTANTS = (FIRST, "dgc(0.001)")
"""DDP first; of ours the one that sends least."""
LOOKS = 40
"""Most looks at the accuracy on the way to the goal."""
ACCURACY_LOOKS = 4
"""Looks after which accuracies are compared, at equal samples."""
JUDGED_LONGER = 2
"""Times as many steps in the further turns of whoever is judged, where they are few."""
MOMENTUM = 0.9


class WireBench(Bench):
    """Cell after cell: all contestants take turns in each."""

    def run(self) -> None:
        for model in self.args.models:
            for hosts in self.args.hosts:
                self.cell(Cell(model, hosts, self.facts[model]["bytes"]))
        if GOAL_MODEL in self.args.models and self.args.seeds:
            self.goals()
            self.accuracies()
            self.check()

    def cell(self, cell: Cell) -> None:
        for repeat, name in turns(self.args.contestants, self.args.repeats + self.args.close):
            rates = [rate for rate in self.args.rates if not repeat or cell.repeated(rate)]
            if repeat >= self.args.repeats:  # only the two that are asked to be as good as equal
                rates = [rate for rate in rates if not rate and name in (AUTO, "allreduce")]
            self.pass_through(cell, name, repeat, rates, self.args.seconds)
        for more, name in turns(self.judged(cell), self.args.judged):
            rates = [rate for rate in self.args.rates if cell.soon(name, rate)]
            repeat = self.args.repeats + self.args.close + more
            self.pass_through(cell, name, repeat, rates, JUDGED_LONGER * self.args.seconds)

    def judged(self, cell: Cell) -> list[str]:
        """Who stands in a figure that was asked for, by everybody's own turns: whoever wins or loses by them."""
        own = [turn for turn in self.kept.of("turns") if turn["repeat"] < self.args.repeats]
        raw = {"turns": [turn for turn in own if turn["hosts"] == cell.hosts], "contestants": self.args.contestants}
        named = {name for rate in self.args.rates for name in contenders(raw, cell.model, rate)}
        return [name for name in self.args.contestants if name in named]

    def pass_through(self, cell: Cell, name: str, repeat: int, rates: list[int], seconds: float) -> None:
        """One run through all rates; one at each of `wire(auto)`."""
        if name != AUTO:
            self.sweep(cell, name, repeat, cell.stages(name, rates, seconds), rates)
            return
        for rate in rates:
            if cell.has_auto(rate):
                self.sweep(cell, name, repeat, [cell.auto_stage(rate, seconds)], [rate])

    def sweep(self, cell: Cell, name: str, repeat: int, stages: list[Stage], rates: list[int]) -> None:
        """One run, and an entry for every rate it has passed."""
        base = {"kind": "turns", "model": cell.model, "hosts": cell.hosts, "contestant": name, "repeat": repeat}
        entries = {rate: {**base, "rate": rate, "delay": 0.0} for rate in rates}
        missing = {rate: entry for rate, entry in entries.items() if not self.kept.has(entry)}
        if not missing:
            return
        limits = {max(LIMITED_FROM, step): rate for step, rate in limits_of(stages).items()}
        lab = lab_text(cell.hosts, 0.0, limits)
        steps = sum(stage.steps for stage in stages)
        seconds = 120 + 10 * sum(stage.steps * cell.expected(name, stage.rate) for stage in stages)
        turn = self.turn(name, cell.model, lab, cell.hosts, steps=steps, momentum=momentum(name))
        outcome = self.take(next(iter(missing.values())), turn, seconds)
        if outcome is None:
            return
        took, sent = sliced(stages, outcome.steps), sliced(stages, outcome.wire)
        for rate, entry in missing.items():
            found = {"steps": [round(each, 6) for each in took[rate]], "wire": round(statistics.fmean(sent[rate]))}
            self.kept.add({**entry, **found, **({"chose": outcome.chose} if name == AUTO else {})})
            self.say(entry, f"{statistics.median(took[rate]) * 1e3:9.1f} ms a step")

    def accuracies(self) -> None:
        """After as many samples as all others, without limits; of those that went to the goal it is known already."""
        for name in self.args.contestants:
            if name not in (FLOOR, AUTO):
                turn = self.looking(name, 0, ACCURACY_LOOKS, 0)
                self.note_accuracy(name, self.take(self.accuracy_entry(name), turn, 300))

    def accuracy_entry(self, name: str) -> dict[str, Any]:
        return {"kind": "accuracy", "model": GOAL_MODEL, "hosts": GOAL_HOSTS, "contestant": name, "seed": 0}

    def note_accuracy(self, name: str, outcome: Outcome | None) -> None:
        """What a run reported after the samples at which all are compared, if it came so far."""
        at, entry = ACCURACY_LOOKS * self.args.look, self.accuracy_entry(name)
        for step, metrics in outcome.reports if outcome else ():
            if step == at and not self.kept.has(entry):
                self.kept.add({**entry, "steps": step, **metrics})
                self.say(entry, f"accuracy {metrics['accuracy']:.4f} after {step} steps")

    def goals(self) -> None:
        goal = self.facts[GOAL_MODEL]["goal"]
        for seed, name in turns([n for n in GOAL_CONTESTANTS if n in self.args.contestants], self.args.seeds):
            entry = {"kind": "goals", "model": GOAL_MODEL, "hosts": GOAL_HOSTS, "contestant": name, "seed": seed}
            outcome = self.take(entry, self.looking(name, seed, LOOKS, 0, goal), 900)
            if outcome:
                most = LOOKS * self.args.look
                self.kept.add({**entry, "steps": outcome.goal_steps, "most": most})
                self.say(entry, f"{outcome.goal_steps or f'more than {most}'} steps to {goal}")
                if not seed:
                    self.note_accuracy(name, outcome)

    def check(self) -> None:
        """One run to the goal in the slow network, of the codec that is there first."""
        told = seen_with({kind: self.kept.of(kind) for kind in ("turns", "goals")})
        ours = [found for found in told if found.name != FIRST]
        if not ours:
            return
        name = min(ours, key=lambda found: found.seconds).name
        entry = {"kind": "checks", "model": GOAL_MODEL, "hosts": GOAL_HOSTS, "rate": SLOW, "delay": 0.0}
        entry |= {"contestant": name, "seed": 0}
        goal = self.facts[GOAL_MODEL]["goal"]
        outcome = self.take(entry, self.looking(name, 0, LOOKS, SLOW, goal), 900)
        if outcome:
            self.kept.add({**entry, "steps": outcome.goal_steps, "seconds": outcome.goal_seconds})
            self.say(entry, f"{outcome.goal_seconds or 0:.1f} s to {goal}")

    def looking(self, name: str, seed: int, looks: int, rate: int, goal: str = "") -> Turn:
        lab = lab_text(GOAL_HOSTS, 0.0, {LIMITED_FROM: rate} if rate else {})
        words = {"steps": self.args.look, "epochs": looks, "goal": goal, "seed": seed, "momentum": momentum(name)}
        return self.turn(name, GOAL_MODEL, lab, GOAL_HOSTS, **words)

    def say(self, entry: dict[str, Any], words: str) -> None:
        network = network_name(entry["rate"], entry["delay"]) if "rate" in entry else f"seed {entry['seed']}"
        place = f"{entry['model']} × {entry['hosts']}"
        print(f"{place:<16} {network:<24} {entry['contestant']:<14} {words}", flush=True)


def momentum(name: str) -> float:
    """The optimizer's; dgc has it in the codec."""
    return 0.0 if name.startswith("dgc") else MOMENTUM
