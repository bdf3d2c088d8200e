"""When a newcomer asks to be let in: at once, when its machine has become quicker, or after ten times as long."""

from typing import Any

import pytest
import torch
from torch import nn

from shoal.train.catchup import rehearsal
from shoal.train.catchup.rehearsal import FAIR, PAUSE, EntryRehearsal


class SlowMachine:
    """A clock by which every rehearsal takes so long, and the warnings that were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds, self.tries = 100.0, seconds, 0
        self.progress, self.warnings = self, list[str]()
        monkeypatch.setattr(EntryRehearsal, "_take_over", self.take_over)
        self.rehearsal = EntryRehearsal(self, lambda: self.now)  # type: ignore[arg-type]

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def take_over(self, *_: object) -> int:
        self.tries += 1
        self.now += self.seconds
        return 3_000_000

    def asks_after(self) -> float:
        began = self.now
        while not self.rehearsal.is_ready():
            self.now += 0.1
        return self.now - began


def test_a_quick_machine_asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(monkeypatch, 0.1)
    assert machine.asks_after() == pytest.approx(0.1)
    assert not machine.warnings


def test_one_that_is_slow_for_a_while_tries_again_until_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(monkeypatch, 24.0)
    assert not machine.rehearsal.is_ready()
    assert "took 24.0 s" in machine.warnings[0]
    assert not machine.rehearsal.is_ready(), "in the pause"
    assert machine.tries == 1
    machine.seconds = 0.2
    assert machine.asks_after() < PAUSE + 0.5


def test_one_that_stays_slow_costs_the_others_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(monkeypatch, 5.0)
    assert FAIR * 5.0 <= machine.asks_after() < FAIR * 5.0 + 2 * (5.0 + PAUSE)
    assert len(machine.warnings) == 1


def test_a_rehearsal_changes_nothing(sides: Any) -> None:
    here = sides(size=64)
    here.step(share=1.0)
    before = {name: tensor.clone() for name, tensor in rehearsal.common([here.joined])[0].items()}
    assert EntryRehearsal(here.joined, lambda: 100.0).is_ready()  # a clock by which the machine is quick
    after = rehearsal.common([here.joined])[0]
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert isinstance(here.model[0], nn.Linear)
