"""Exp3 among versions: it finds the best one, leaves it when it turns bad, and its regret stays below the bound."""

from math import log, sqrt
from random import Random

import pytest

from shoal.serve.bandit import EXPLORE, choose, exp3_chances


def play(rewards: list[dict[int, float]], seed: int = 0) -> tuple[list[int], float]:
    """The version of each round, and the sum of its losses; `rewards` are probabilities of a reward."""
    chance, losses, chosen, paid = Random(seed), dict.fromkeys(rewards[0], 0.0), [], 0.0
    for each in rewards:
        chances = exp3_chances(losses)
        number = choose(chances, chance.random())
        lost = float(chance.random() >= each[number])
        losses[number] += lost / chances[number]
        chosen.append(number)
        paid += lost
    return chosen, paid


def test_chances_add_up_and_nobody_is_left_out() -> None:
    chances = exp3_chances({1: 0.0, 2: 50.0, 3: 10_000.0})
    assert sum(chances.values()) == pytest.approx(1.0)
    assert min(chances.values()) >= EXPLORE / 3
    assert exp3_chances({}) == {}
    assert exp3_chances({7: 3.0}) == {7: 1.0}


def test_every_point_chooses_in_proportion() -> None:
    chances = {1: 0.25, 2: 0.75}
    found = [choose(chances, at / 1000) for at in range(1000)]
    assert (found.count(1), found.count(2)) == (250, 750)
    assert choose({1: 0.1, 2: 0.1}, 0.999) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_best_version_gets_most_requests_and_regret_is_below_the_bound(seed: int) -> None:
    rounds, means = 4000, {1: 0.9, 2: 0.5, 3: 0.4}
    chosen, paid = play([means] * rounds, seed)
    assert chosen[-1000:].count(1) >= 850
    bound = 2.63 * sqrt(3 * rounds * log(3)) + EXPLORE * rounds  # Auer et al., corollary 3.2, and what exploring costs
    assert paid - rounds * (1 - means[1]) <= bound


@pytest.mark.parametrize("seed", range(5))
def test_a_version_that_turns_bad_is_left(seed: int) -> None:
    before, after = {1: 0.95, 2: 0.6}, {1: 0.1, 2: 0.9}
    chosen, _ = play([before] * 2000 + [after] * 2000, seed)
    assert chosen[1500:2000].count(1) >= 400
    assert chosen[-500:].count(2) >= 400
