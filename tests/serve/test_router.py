"""Who answers a request that names no version: by share, by feedback, and the same for the same id."""

import asyncio
from collections import Counter
from random import Random

import pytest
from served import MemorySource, Scaled, asked, core_of, x

from shoal.core.errors import UsageError
from shoal.serve.core import ServingCore
from shoal.serve.core_settings import CoreSettings
from shoal.serve.router import TrafficSettings


def serving(traffic: str, versions: int = 2) -> ServingCore:
    makers = {number: (lambda number=number: Scaled(float(number))) for number in range(1, versions + 1)}
    settings = CoreSettings(traffic=TrafficSettings.parse(traffic, "", ""), keep=versions)
    core = core_of(MemorySource("m", makers), settings=settings)
    core.router._chance = Random(0).random
    return core


def numbers(core: ServingCore, keys: list[str]) -> list[int]:
    async def main() -> list[int]:
        found = [(await core.infer("m", x(), key=key)).number for key in keys]
        await core.close()
        return found

    return asyncio.run(main())


def test_a_share_of_the_requests_goes_to_the_newest() -> None:
    found = Counter(numbers(serving("ab:20%"), [""] * 1000))
    assert found[2] == pytest.approx(200, abs=40)
    assert found[1] + found[2] == 1000


def test_an_id_sees_one_version_and_ids_are_divided() -> None:
    keys = [f"user-{number}" for number in range(300)]
    found = numbers(serving("ab"), keys * 2)
    assert found[:300] == found[300:]
    assert found.count(1) == pytest.approx(300, abs=60)


def test_feedback_moves_requests_to_the_better_version() -> None:
    core, chance = serving("bandit", versions=3), Random(1)

    async def main() -> list[int]:
        found = []
        for at in range(1500):
            answer = await core.infer("m", x(), key=f"request-{at}")
            reward = float(chance.random() < {1: 0.3, 2: 0.9, 3: 0.4}[answer.number])
            assert core.reward("m", reward, key=f"request-{at}") == answer.number
            found.append(answer.number)
            if at % 10 == 9:
                core.poll()
        await core.close()
        return found

    assert asyncio.run(main())[-300:].count(2) >= 240


def test_feedback_and_traffic_over_http() -> None:
    async def main(client) -> None:  # type: ignore[no-untyped-def]
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}], "id": "seven"}
        number = (await client.post("/v2/models/m/infer", json=body)).json()["model_version"]
        found = await client.post("/v2/models/m/feedback", json={"id": "seven", "reward": 1})
        assert (found.status_code, found.json()) == (200, {"name": "m", "version": number})
        told = (await client.get("/v2/models/m/traffic")).json()
        assert (told["policy"], told["versions"][number]["reward_mean"]) == ("ab", 1.0)
        for bad, words in (
            ({"id": "seven", "reward": 1}, "no request with the id"),
            ({"reward": 1}, "give one of them"),
            ({"id": "seven", "reward": 2}, "reward"),
            ({"version": 9, "reward": 1}, "no version 9"),
        ):
            found = await client.post("/v2/models/m/feedback", json=bad)
            assert found.status_code in (400, 404)
            assert words in found.json()["error"]

    asked(serving("ab"), main)


@pytest.mark.parametrize("text", ["some", "ab:0%", "ab:100%", "bandit:3"])
def test_a_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--traffic"):
        TrafficSettings.parse(text, "", "")


def test_two_policies_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        TrafficSettings.parse("ab", "shadow", "")
