"""Which version answers a request that names none, and which one gets a copy of it.

newest      the newest version (the null member)
ab:20%      the newest one answers 20 %, the one before it the rest; for a comparison (`experiment.py`)
bandit      versions by what feedback says of them (`bandit.py`)
rollout     by the stage that a new version is in (`rollout.py`)

A request with an `id` goes the same way as others with that id, so that a user sees one version; without one it is
chance. Decisions are made at each poll, from counts of all processes; a request costs a comparison of numbers.
"""

import hashlib
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from shoal.core.errors import UsageError
from shoal.serve.bandit import choose, exp3_chances
from shoal.serve.control import NOTHING, SharedControl
from shoal.serve.errors import RequestError
from shoal.serve.experiment import compare_versions
from shoal.serve.metrics import VersionMetrics
from shoal.serve.rollout import RolloutPlan, RolloutStage, RolloutState, StageCounts, advance
from shoal.serve.stream import VersionStream

MOST_REMEMBERED = 10_000
"""Requests whose feedback may still come."""


@dataclass(frozen=True)
class TrafficSettings:
    """How requests are divided among the versions of every model."""

    kind: Literal["newest", "ab", "bandit", "rollout"] = "newest"
    share: float = 0.5
    """Of the newest version, with `ab`."""
    rollout: RolloutPlan | None = None

    @classmethod
    def parse(cls, traffic: str, rollout: str, rule: str) -> "TrafficSettings":
        """Of `--traffic`, `--rollout` and `--rule`; empty ones were not given."""
        if rollout or rule:
            if traffic:
                raise UsageError(f"--traffic {traffic} and --rollout both divide the requests; give one of them")
            plan = RolloutPlan.parse(rollout or "direct", rule) if rule else RolloutPlan.parse(rollout)
            return cls("rollout", rollout=plan)
        match = re.fullmatch(r"(newest|bandit|ab(?::(\d+(?:\.\d+)?)%)?)", traffic or "newest")
        share = float(match[2]) / 100 if match and match[2] else 0.5
        if match is None or not 0 < share < 1:
            raise UsageError(f"--traffic {traffic!r} is unknown; write newest, ab, ab:20% or bandit")
        if match[1] in ("newest", "bandit"):
            return cls("bandit" if match[1] == "bandit" else "newest")
        return cls("ab", share)

    @property
    def least_kept(self) -> int:
        # Dividing requests needs two versions that are loaded.
        return 2 if self.kind in ("ab", "bandit") else 1


@dataclass(frozen=True)
class RequestRoute:
    """Where one request goes; None: to whatever the manager serves."""

    number: int | None = None
    shadow: int | None = None


@dataclass
class ModelRoutes:
    """Of one model, as of the last poll."""

    chances: dict[int, float] = field(default_factory=dict)
    """Versions that answer, each with its probability; empty: the one that the manager serves."""
    shadow: tuple[int, float] | None = None
    asked: "OrderedDict[str, tuple[int, float]]" = field(default_factory=OrderedDict)
    """Versions that answered requests with an id, and how probable that was."""
    said: str = ""
    """The last decision that was told."""


class VersionRouter:
    """Refreshed by the thread that polls, asked on the event loop."""

    def __init__(
        self, settings: TrafficSettings, control: SharedControl, chance: Callable[[], float] = random.random
    ) -> None:
        self.settings, self._control, self._chance = settings, control, chance
        self._routes: dict[str, ModelRoutes] = {}

    def refresh(
        self,
        stream: VersionStream,
        available: Mapping[int, bool],
        metrics: Mapping[int, VersionMetrics],
        broken: Mapping[int, str],
    ) -> str:
        """Decide by what has been counted; tells the stream what to load. `available` are the loaded versions.

        Returns what was decided about a new version, if anything was.
        """
        routes = self._routes.setdefault(stream.name, ModelRoutes())
        if stream.pinned is not None or self.settings.kind == "newest":
            stream.direct(None)
            routes.chances, routes.shadow = {}, None
            return ""
        if self.settings.rollout is not None:
            return self._roll(stream, routes, available, metrics, broken)
        numbers = [each for each in stream.numbers[-stream.keep :] if each in available]
        routes.chances = self._divided(numbers, metrics)
        return ""

    def _divided(self, numbers: list[int], metrics: Mapping[int, VersionMetrics]) -> dict[int, float]:
        if self.settings.kind == "bandit":
            return exp3_chances({each: metrics[each].traffic.loss if each in metrics else 0.0 for each in numbers})
        if len(numbers) < 2:
            return {}
        return {numbers[-2]: 1.0 - self.settings.share, numbers[-1]: self.settings.share}

    def _roll(
        self,
        stream: VersionStream,
        routes: ModelRoutes,
        available: Mapping[int, bool],
        metrics: Mapping[int, VersionMetrics],
        broken: Mapping[int, str],
    ) -> str:
        plan = self.settings.rollout
        assert plan is not None
        counts = {number: StageCounts.of(each) for number, each in metrics.items()}
        held = self._control.read().get(stream.name, NOTHING).rollout
        state = advance(held, plan, stream.numbers, counts, broken)
        if state != held:  # another process may have decided in the meantime: ask again under the lock
            state = self._control.change(
                stream.name,
                lambda now: replace(now, rollout=advance(now.rollout, plan, stream.numbers, counts, broken)),
            ).rollout
        stream.direct(state.stable, () if state.candidate is None else (state.candidate,))
        ready = state.candidate is not None and state.candidate in available and state.stable in available
        stage = plan.stages[state.stage] if ready and state.stage < len(plan.stages) else None
        routes.chances, routes.shadow = _staged(state, stage)
        last = state.history[-1] if state.history else ""
        said, routes.said = last if last != routes.said else "", last
        return said

    def route(self, name: str, key: str = "") -> RequestRoute:
        """The way of a request; `key` is its id."""
        routes = self._routes.get(name)
        # The usual case, answered without drawing a number.
        if routes is None or not (routes.chances or routes.shadow):
            return RequestRoute()
        chances, shadow = routes.chances, routes.shadow  # the thread that polls may replace them meanwhile
        number = choose(chances, self._point(key)) if chances else None
        if key and number is not None:
            routes.asked[key] = number, chances[number]
            if len(routes.asked) > MOST_REMEMBERED:
                # The oldest, whose feedback is the least likely still to come.
                routes.asked.popitem(last=False)
        return RequestRoute(number, shadow[0] if shadow is not None and self._chance() < shadow[1] else None)

    def _point(self, key: str) -> float:
        if not key:
            return self._chance()
        # A digest, because hash() of a text differs from start to start; 48 bits fit into a float exactly.
        return int.from_bytes(hashlib.blake2b(key.encode(errors="replace"), digest_size=6).digest()) / 2**48

    def loss(self, name: str, reward: float, *, key: str = "", number: int | None = None) -> tuple[int, float]:
        """The version that a reward is about, and the loss ÷ probability that it adds."""
        routes = self._routes.get(name, ModelRoutes())
        if key:
            if key not in routes.asked:
                raise RequestError(f"no request with the id {key[:80]!r} was answered here lately; give its version")
            # Taken out, so that one answer is rewarded once.
            number, chance = routes.asked.pop(key)
        else:
            assert number is not None
            chance = routes.chances.get(number, 1.0)
        return number, (1.0 - reward) / chance

    def describe(self, name: str, metrics: Mapping[int, VersionMetrics]) -> dict[str, Any]:
        """For people and dashboards: how requests are divided, and what is known of the versions."""
        routes, told = self._routes.get(name, ModelRoutes()), compare_versions(metrics)
        told |= {"policy": self.settings.kind, "shares": {str(each): share for each, share in routes.chances.items()}}
        told["shadow"] = None if routes.shadow is None else str(routes.shadow[0])
        if (plan := self.settings.rollout) is not None:
            state = self._control.read().get(name, NOTHING).rollout
            stage = plan.stages[state.stage].words if state.candidate is not None else None
            told["rollout"] = {
                "stable": state.stable,
                "candidate": state.candidate,
                "stage": stage,
                "rejected": list(state.rejected),
                "history": list(state.history),
            }
        return told


def _staged(state: RolloutState, stage: RolloutStage | None) -> tuple[dict[int, float], tuple[int, float] | None]:
    """Probabilities of versions, and the version that gets copies with its share."""
    if stage is None or state.candidate is None or state.stable is None:
        return {}, None
    if stage.kind == "shadow":
        return {}, (state.candidate, stage.share)
    return {state.stable: 1.0 - stage.share, state.candidate: stage.share}, None
