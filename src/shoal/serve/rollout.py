"""A new version comes into service in stages, by a rule: copies of requests, then a share of them, then all.

    shadow       it gets copies, and no client gets its answers
    canary:5%    it answers 5 % of the requests
    (all)        it answers everything; the version before it stays loaded
    kept         the version before it is let go

At each stage the rule is asked. `pass` leads to the next stage; a broken rule leads back to the version before, and the
new one is not tried again. The state is a value and `advance` a pure function: processes of a server agree because they
change one file under a lock (`control.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from shoal.core.errors import UsageError
from shoal.serve.metrics import VersionMetrics

# The state is rewritten with every decision, so it must not grow.
LONGEST_HISTORY = 20
DEFAULT_RULE = "requests>=100,errors<=0.01,latency<=2"
_TERM = re.compile(r"(requests|errors|latency|agreement)\s*(>=|<=)\s*(\d+(?:\.\d+)?)(%?)")
_SIGNS = {"requests": ">=", "agreement": ">=", "errors": "<=", "latency": "<="}


class StageCounts(msgspec.Struct, frozen=True):
    """What was counted of one version; differences of two of them are what happened between."""

    requests: int = 0
    failed: int = 0
    answered: int = 0
    seconds: float = 0.0
    compared: int = 0
    agreed: int = 0

    @classmethod
    def of(cls, metrics: VersionMetrics | None) -> "StageCounts":
        if metrics is None:
            return cls()
        counts = metrics.traffic
        # Without 4xx: malformed requests are their clients' fault, and say nothing about the version.
        requests = sum(count for status, count in metrics.statuses.items() if status < 400 or status >= 500)
        return cls(
            requests, metrics.failed, metrics.latency.count, metrics.latency.total, counts.compared, counts.agreed
        )

    def since(self, before: "StageCounts") -> "StageCounts":
        names = self.__struct_fields__
        # Counts of a killed process may be lost: never below nothing.
        return StageCounts(*(max(0, getattr(self, name) - getattr(before, name)) for name in names))

    @property
    def mean(self) -> float:
        return self.seconds / self.answered if self.answered else 0.0


@dataclass(frozen=True)
class RolloutRule:
    """What a new version must show before the next stage."""

    requests: int = 100
    """Requests of a stage before it is decided."""
    errors: float = 1.0
    """The share of requests that may fail."""
    latency: float = float("inf")
    """Mean seconds to an answer, as a multiple of the other version's."""
    agreement: float = 0.0
    """The share of copied samples with the same answer as the other version's; shadow alone."""

    @classmethod
    def parse(cls, text: str) -> "RolloutRule":
        found: dict[str, float] = {}
        for word in text.split(","):
            match = _TERM.fullmatch(word.strip())
            if match is None or match[2] != _SIGNS[match[1]]:
                raise UsageError(f"--rule {text!r}: {word.strip()!r} is no condition; write {DEFAULT_RULE}")
            found[match[1]] = float(match[3]) / (100.0 if match[4] else 1.0)
        rule = cls(int(found.pop("requests", 100)), **found)
        if rule.requests < 1 or rule.errors > 1 or rule.agreement > 1:
            raise UsageError(f"--rule {text!r}: requests is 1 or more, errors and agreement are shares up to 1")
        return rule

    def judge(self, new: StageCounts, old: StageCounts) -> str:
        """`wait`, `pass`, or why the version is refused. As many errors as can never pass are not waited for."""
        # Against the number that decides: so many errors break the rule whatever the rest of the stage brings.
        if new.failed > self.errors * max(self.requests, new.requests):
            return f"{new.failed} of {new.requests} requests failed; the rule is errors<={self.errors:g}"
        if new.requests < self.requests:
            return "wait"
        if new.answered and old.mean and new.mean > self.latency * old.mean:
            ratio = new.mean / old.mean
            return f"answers take {ratio:.2f} times as long as before; the rule is latency<={self.latency:g}"
        if new.compared and new.agreed < self.agreement * new.compared:
            share = new.agreed / new.compared
            return f"{share:.3f} of the answers agree; the rule is agreement>={self.agreement:g}"
        return "pass"


@dataclass(frozen=True)
class RolloutStage:
    """How a new version is tried."""

    kind: Literal["shadow", "canary"]
    share: float

    @property
    def words(self) -> str:
        return self.kind if self.kind == "shadow" and self.share == 1 else f"{self.kind}:{self.share * 100:g}%"


@dataclass(frozen=True)
class RolloutPlan:
    """The stages in their order; all requests is always the last of them."""

    stages: tuple[RolloutStage, ...]
    rule: RolloutRule

    @classmethod
    def parse(cls, stages: str, rule: str = DEFAULT_RULE) -> "RolloutPlan":
        """`shadow,canary:5%`; `direct` is none but all requests at once, watched."""
        words = [] if stages.strip() == "direct" else stages.split(",")
        found = [_stage(stages, word.strip()) for word in words]
        return cls((*found, RolloutStage("canary", 1.0)), RolloutRule.parse(rule))


def _stage(text: str, word: str) -> RolloutStage:
    match = re.fullmatch(r"(shadow|canary)(?::(\d+(?:\.\d+)?)%)?", word)
    share = float(match[2]) / 100.0 if match and match[2] else 1.0
    if match is None or not 0 < share <= 1 or (match[1] == "canary" and not match[2]):
        raise UsageError(f"--rollout {text!r}: {word!r} is no stage; write shadow, canary:5%, both, or direct")
    return RolloutStage("shadow" if match[1] == "shadow" else "canary", share)


class RolloutState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the rollout of one model is."""

    stable: int | None = None
    candidate: int | None = None
    stage: int = 0
    before_new: StageCounts = StageCounts()
    before_old: StageCounts = StageCounts()
    """Counts of the candidate and of the stable version when the stage began."""
    rejected: tuple[int, ...] = ()
    history: tuple[str, ...] = ()
    """What was decided, the last decision at the end."""


def advance(
    state: RolloutState,
    plan: RolloutPlan,
    numbers: Sequence[int],
    counts: Mapping[int, StageCounts],
    broken: Mapping[int, str] | None = None,
) -> RolloutState:
    """The state after a look at the versions that exist, their counts, and those that do not load."""
    broken = broken or {}
    if not numbers:
        return state
    if state.stable not in numbers:
        # Whatever there is, if all were refused or do not load: a model that was served must not vanish.
        usable = [each for each in numbers if each not in state.rejected and each not in broken] or list(numbers)
        return _told(
            RolloutState(rejected=state.rejected, history=state.history), f"{max(usable)} is served", max(usable)
        )
    if state.candidate is not None and state.candidate not in numbers:
        state = _told(replace(state, candidate=None, stage=0), f"{state.candidate} does not exist any more")
    if state.candidate is None:
        return _begin(state, plan, numbers, counts)
    return _decide(state, plan, counts, broken)


def _begin(
    state: RolloutState, plan: RolloutPlan, numbers: Sequence[int], counts: Mapping[int, StageCounts]
) -> RolloutState:
    assert state.stable is not None
    newest = max(numbers)
    if newest <= state.stable or newest in state.rejected:
        return state
    words = f"{newest} is tried: {plan.stages[0].words}"
    return _told(_entered(replace(state, candidate=newest, stage=0), counts), words)


def _decide(
    state: RolloutState, plan: RolloutPlan, counts: Mapping[int, StageCounts], broken: Mapping[int, str]
) -> RolloutState:
    new, old = state.candidate, state.stable
    assert new is not None
    assert old is not None
    during = counts.get(old, StageCounts()).since(state.before_old)
    usual = during if during.answered else counts.get(old, StageCounts())  # at the last stage the old one is idle
    verdict = plan.rule.judge(counts.get(new, StageCounts()).since(state.before_new), usual)
    if new in broken:
        verdict = f"it does not load: {broken[new][:200]}"
    if verdict == "wait":
        return state
    if verdict != "pass":
        # Versions only grow, so a hundred refused ones are enough to remember.
        held = replace(state, candidate=None, stage=0, rejected=(*state.rejected, new)[-100:])
        return _told(held, f"{new} is refused, {old} is served: {verdict}")
    if state.stage + 1 < len(plan.stages):
        moved = _entered(replace(state, stage=state.stage + 1), counts)
        return _told(moved, f"{new} goes on: {plan.stages[moved.stage].words}")
    return _told(replace(state, stable=new, candidate=None, stage=0), f"{new} is kept, {old} is let go")


def _entered(state: RolloutState, counts: Mapping[int, StageCounts]) -> RolloutState:
    new, old = counts.get(state.candidate or 0, StageCounts()), counts.get(state.stable or 0, StageCounts())
    return replace(state, before_new=new, before_old=old)


def _told(state: RolloutState, words: str, stable: int | None = None) -> RolloutState:
    history = (*state.history, words)[-LONGEST_HISTORY:]
    return replace(state, history=history, stable=state.stable if stable is None else stable)
