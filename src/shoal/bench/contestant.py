"""The contestants of a benchmark, and how each is started: always as a process of its own, with a record."""

import sys
from pathlib import Path

import msgspec

from shoal.bench.plans import split_plans
from shoal.core.errors import UsageError
from shoal.core.suggest import hint
from shoal.plan.load import load
from shoal.plan.rules import check

PEER_NAMES = ("ddp", "ddp-fp16", "ddp-powersgd", "ddp-localsgd")
"""As in peers/table.py, which needs torch; a test compares them."""


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be made."""

    script: str
    arguments: tuple[str, ...]
    workers: int
    seed: int
    runs: Path
    name: str
    lab: str = ""
    """Emulated hosts, as text or a file; empty: this machine."""


class BenchContestant(msgspec.Struct, frozen=True):
    """A plan, or a peer by its name."""

    name: str
    peer: bool = False

    def command(self, order: TrialOrder) -> list[str]:
        """Return the command that makes the run and prints its summary as the last line."""
        shoal = [sys.executable, "-m"]
        shoal += ["shoal.bench.peer", self.name] if self.peer else ["shoal", "run", "--plan", self.name]
        shoal += ["--lab", order.lab] if order.lab else []
        shoal += ["--workers", str(order.workers), "--seed", str(order.seed), "--runs", str(order.runs)]
        return [*shoal, "--name", order.name, "--json", "--quiet", order.script, *order.arguments]


def contestants(plans: list[str], peers: str, workers: list[int]) -> list[BenchContestant]:
    """Plans first, in the order given, then peers; what cannot run is refused before anything starts."""
    # By the plan's own text, so that two spellings of one plan are one contestant.
    found = [BenchContestant(str(load(text))) for text in split_plans(plans)]
    found += [BenchContestant(_peer(name.strip()), peer=True) for name in peers.split(",") if name.strip()]
    for contestant in found:
        if found.count(contestant) > 1:
            raise UsageError(f"{contestant.name!r} takes part twice; name each contestant once")
        if not contestant.peer:
            for number in workers:
                check(load(contestant.name), number)
    if not found:
        raise UsageError("there are no contestants; name plans with --plans or peers with --peers")
    return found


def _peer(name: str) -> str:
    if name not in PEER_NAMES:
        raise UsageError(f"unknown peer {name!r}; {hint(name, PEER_NAMES, 'peers are ' + ', '.join(PEER_NAMES))}")
    return name
