"""Updates that a schedule by priority needs, as a share of those in turn, to the same objective (STRADS).

    python benchmarks/scheduling.py

Counts, not times: the same on every machine. One worker; any number comes to the same weights
(`tests/examples/test_lasso.py`). Each seed is another data set and another draw.
"""

import argparse
import sys
from pathlib import Path

import torch

from shoal.train.block_schedule import BlockSchedule

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from lasso import LassoModel

VARIABLES, WIDTH, THRESHOLD = 500, 8, 0.4
CLOSE = 1.001
"""How near to the least objective both have to come."""
MOST = 6000
"""Steps after which an order is given up; 96 turns of all variables."""


def count_updates(correlation: float, seed: int, order: str, goal: float) -> tuple[int, float]:
    """Return how many updates were made, and the objective at the end."""
    model = LassoModel(300, VARIABLES, correlation, penalty=0.1, seed=seed)
    schedule = BlockSchedule(
        VARIABLES, WIDTH, dependence=model.correlations, threshold=THRESHOLD, order=order, seed=seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule.watch(optimizer, model.gradients)
    state, updates, objective = schedule.first_state(), 0, model.objective()
    for _ in range(MOST):
        drawn = schedule.draw(state)
        schedule.share(drawn, 0, 1)
        changes = torch.zeros_like(model.weights, requires_grad=False)
        changes[drawn] = model.changes(drawn)
        model.weights.grad = -changes
        optimizer.step()
        state, updates, previous = schedule.advance(state, drawn, changes), updates + len(drawn), objective
        objective = model.objective()
        if objective <= goal or (goal == 0.0 and updates > 40 * VARIABLES and previous - objective < 1e-12):
            break
    return updates, objective


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--correlations", default="0.5,0.7,0.9", help="of the columns of a group of five")
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| correlation | updates by priority / in turn, seed by seed |\n|---|---|")
    for correlation in map(float, args.correlations.split(",")):
        ratios = []
        for seed in range(args.seeds):
            _, least = count_updates(correlation, seed, "turn", 0.0)
            in_turn, _ = count_updates(correlation, seed, "turn", CLOSE * least)
            found, objective = count_updates(correlation, seed, "priority", CLOSE * least)
            ratios.append(f"{found / in_turn:.2f}" if objective <= CLOSE * least else f"> {found / in_turn:.2f}")
        print(f"| {correlation:g} | {', '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
