"""Stages of a new version, as a pure state machine and on a core: promoted by the rule, or taken back."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import MemorySource, Scaled, core_of, x

from shoal.core.errors import UsageError
from shoal.serve.core import ServingCore
from shoal.serve.core_settings import CoreSettings
from shoal.serve.errors import RequestError
from shoal.serve.rollout import RolloutPlan, RolloutRule, RolloutState, StageCounts, advance
from shoal.serve.router import TrafficSettings

PLAN = RolloutPlan.parse("shadow,canary:10%", "requests>=10,errors<=10%,latency<=2,agreement>=0.9")
GOOD = StageCounts(requests=10, answered=10, seconds=1.0, compared=10, agreed=10)


def total(*parts: StageCounts) -> StageCounts:
    names = StageCounts.__struct_fields__
    return StageCounts(*(sum(getattr(part, name) for part in parts) for name in names))


def followed(stages: list[StageCounts], old: StageCounts = GOOD) -> RolloutState:
    """The state after a new version had these counts in its stages, beside an old one."""
    state = advance(RolloutState(), PLAN, [1], {})
    state = advance(state, PLAN, [1, 2], {1: old})
    for at in range(len(stages)):
        state = advance(state, PLAN, [1, 2], {1: total(*[old] * (at + 2)), 2: total(*stages[: at + 1])})
    return state


def test_a_good_version_goes_through_all_stages() -> None:
    assert [followed([GOOD] * stages).stage for stages in range(3)] == [0, 1, 2]
    state = followed([GOOD] * 3)
    assert (state.stable, state.candidate) == (2, None)
    assert [each.split(":")[0] for each in state.history] == [
        "1 is served", "2 is tried", "2 goes on", "2 goes on", "2 is kept, 1 is let go",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (StageCounts(requests=3, failed=2, answered=1), "2 of 3 requests failed; the rule is errors<=0.1"),
        (StageCounts(requests=10, answered=10, seconds=3.0), "3.00 times as long"),
        (StageCounts(requests=10, answered=10, seconds=1.0, compared=10, agreed=8), "0.800 of the answers agree"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_bad_one_is_taken_back_at_any_stage_and_not_tried_again(bad: StageCounts, words: str, at: int) -> None:
    state = followed([GOOD] * at + [bad])
    assert (state.stable, state.candidate, state.rejected) == (1, None, (2,))
    assert words in state.history[-1]
    assert advance(state, PLAN, [1, 2], {}) == state
    assert advance(state, PLAN, [1, 2, 3], {}).candidate == 3


def test_few_requests_decide_nothing() -> None:
    assert followed([StageCounts(requests=9, failed=1, answered=8)]).stage == 0


def test_a_newer_version_waits_for_the_decision() -> None:
    state = advance(advance(RolloutState(), PLAN, [1], {}), PLAN, [1, 2], {})
    assert advance(state, PLAN, [1, 2, 3], {}).candidate == 2


def test_what_does_not_load_or_is_removed_is_given_up() -> None:
    state = advance(advance(RolloutState(), PLAN, [1], {}), PLAN, [1, 2], {})
    assert "does not load: damaged" in advance(state, PLAN, [1, 2], {}, {2: "damaged"}).history[-1]
    assert advance(state, PLAN, [1], {}).candidate is None
    assert advance(state, PLAN, [2], {}).stable == 2


steps = st.lists(
    st.tuples(st.sets(st.integers(1, 5)), st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=30
)


@given(steps)
def test_whatever_happens_a_version_that_exists_is_served_and_no_refused_one(history: list[Any]) -> None:
    state, counts = RolloutState(), {number: StageCounts() for number in range(1, 6)}
    for numbers, requests, failed, slow in history:
        if state.candidate is not None:
            more = StageCounts(requests, min(failed, requests), requests, requests * (3.0 if slow else 1.0))
            counts[state.candidate] = total(counts[state.candidate], more)
        refused = set(state.rejected)
        state = advance(state, PLAN, sorted(numbers), counts)
        if numbers:
            assert state.stable in numbers
            assert state.candidate is None or state.candidate in numbers
            assert state.candidate not in refused
        assert 0 <= state.stage < len(PLAN.stages)


@pytest.mark.parametrize("text", ["", "errors", "errors>=0.1", "requests>=0", "errors<=200%", "colour<=1"])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rule"):
        RolloutRule.parse(text)


@pytest.mark.parametrize("text", ["", "canary", "canary:0%", "canary:101%", "shadow,all"])
def test_stages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rollout"):
        RolloutPlan.parse(text)


class FailingModel(Scaled):
    def predict(self, x: Any) -> Any:
        raise ValueError("it never works")


def rolling(new: type[Scaled] | Any, stages: str, rule: str) -> tuple[ServingCore, MemorySource]:
    source = MemorySource("m", {1: lambda: Scaled(2.0)})
    settings = CoreSettings(traffic=TrafficSettings("rollout", rollout=RolloutPlan.parse(stages, rule)))
    core = core_of(source, settings=settings)
    source.add(2, new)
    core.poll()
    return core, source


def asked(core: ServingCore, count: int, every: int = 10) -> list[float]:
    """Answers of that many requests, with polls between them; -1 where one failed."""

    async def main() -> list[float]:
        found = []
        for at in range(count):
            try:
                found.append(float((await core.infer("m", x())).outputs["y"][0, 0]))
            except RequestError:
                found.append(-1.0)
            if at % every == every - 1:
                await core.asker.drain()
                await core.poll_once()
        await core.close()
        return found

    return asyncio.run(main())


def test_a_shadow_answers_nobody_and_is_promoted_when_it_agrees() -> None:
    core, _ = rolling(lambda: Scaled(2.0 * (1 + 1e-6)), "shadow", "requests>=20,errors<=0,agreement>=0.99")
    found = asked(core, 20)
    assert set(found) == {2.0}
    counts = core.metrics[("m", 2)]
    assert (counts.statuses[200], counts.traffic.compared, counts.traffic.agreed) == (20, 20, 20)
    assert core.router.describe("m", {})["rollout"]["stage"] == "canary:100%"


def test_a_shadow_that_disagrees_or_fails_harms_nobody() -> None:
    for new in (lambda: Scaled(-2.0), FailingModel):
        core, _ = rolling(new, "shadow", "requests>=20,errors<=0,agreement>=0.9")
        assert set(asked(core, 40)) == {2.0}
        assert core.router.describe("m", {})["rollout"]["rejected"] == [2]
        assert core.manager.serving("m") == 1


def test_a_canary_that_fails_costs_its_share_and_is_rolled_back() -> None:
    core, _ = rolling(FailingModel, "canary:10%", "requests>=50,errors<=1%")
    found = asked(core, 300)
    assert 1 <= found.count(-1.0) <= 15
    assert set(found[-100:]) == {2.0}
    assert [each.number for each in core.manager.versions("m") if each.state == "available"] == [1]


def test_a_version_at_full_traffic_is_rolled_back_by_itself() -> None:
    core, source = rolling(FailingModel, "direct", "requests>=20,errors<=5%")
    found = asked(core, 60)
    assert 2 <= found.count(-1.0) <= 20
    assert set(found[-20:]) == {2.0}
    source.add(3, lambda: Scaled(5.0))
    core2 = core_of(source, settings=core.settings)  # a new server begins with the newest
    assert core2.manager.serving("m") == 3


def test_somebody_who_rolls_back_overrules_and_may_try_again() -> None:
    core, _ = rolling(FailingModel, "direct", "requests>=5,errors<=0")

    async def main() -> None:
        await core.roll_back("m", 1)
        assert (await core.infer("m", x())).number == 1
        await core.follow_newest("m")
        with pytest.raises(RequestError):
            await core.infer("m", x())
        await core.poll_once()
        assert (await core.infer("m", x())).number == 1  # by the rule
        await core.follow_newest("m")
        assert core.router.describe("m", {})["rollout"]["candidate"] == 2
        await core.close()

    asyncio.run(main())


def test_rows_agree_by_their_class_or_their_value() -> None:
    from shoal.serve.shadow import agreeing_rows

    ours = {"y": np.array([[0.1, 0.9], [0.8, 0.2]])}
    assert agreeing_rows(ours, {"y": np.array([[0.3, 0.7], [0.1, 0.2]])}) == (1, 2)
    assert agreeing_rows(ours, {"z": ours["y"]}) == (0, 2)
    assert agreeing_rows({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.1])}) == (1, 2)
    assert agreeing_rows({"y": np.array(3)}, {"y": np.array(3)}) == (1, 1)
