"""Sparse regression by scheduled coordinate descent: workers share out the variables instead of the samples.

    python examples/lasso.py
    shoal run --workers 4 examples/lasso.py --width 16
    shoal run --workers 2 --plan "allreduce, stale(1)" examples/lasso.py --delay 1

    minimise  1/2 |y - X b|^2 + penalty |b|_1

The minimum over one variable, with the others as they are, has a closed form. Correlated variables that are updated
together overshoot, because each makes up for the same residual; so the schedule (`shoal.BlockSchedule`) never draws
two whose correlation exceeds `--threshold`, and draws those that changed most. Lee et al., NIPS 2014 (STRADS).
"""

import argparse

import torch
from torch import Tensor, nn

import shoal


class LassoModel(nn.Module):
    """Made data: columns of length 1, in groups that are correlated by `correlation`; a few of them explain y."""

    def __init__(self, samples: int, variables: int, correlation: float, penalty: float, seed: int = 0) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        common = torch.randn(samples, (variables + 4) // 5, generator=source, dtype=torch.float64)
        own = torch.randn(samples, variables, generator=source, dtype=torch.float64)
        columns = correlation**0.5 * common.repeat_interleave(5, 1)[:, :variables] + (1 - correlation) ** 0.5 * own
        self.columns = (columns / columns.norm(dim=0)).T.contiguous()
        explains = torch.randperm(variables, generator=source)[: max(1, variables // 50)]
        truth = 5 * torch.randn(len(explains), generator=source, dtype=torch.float64)
        noise = 0.1 * torch.randn(samples, generator=source, dtype=torch.float64)
        self.wanted = truth @ self.columns[explains] + noise
        self.penalty = penalty * float((self.columns @ self.wanted).abs().max())
        self.weights = nn.Parameter(torch.zeros(variables, dtype=torch.float64))

    def residual(self) -> Tensor:
        weights = self.weights.detach()
        used = weights.nonzero().flatten()
        return self.wanted - weights[used] @ self.columns[used]

    def objective(self) -> float:
        return float(self.residual().square().sum() / 2 + self.penalty * self.weights.detach().abs().sum())

    def correlations(self, variable: int, others: list[int]) -> Tensor:
        return (self.columns[others] @ self.columns[variable]).abs()

    def changes(self, variables: list[int]) -> Tensor:
        """Return what brings each of these variables to its minimum, with all others as they are."""
        now = self.weights.detach()[variables]
        best = self.columns[variables] @ self.residual() + now
        return best.sign() * (best.abs() - self.penalty).clamp(min=0) - now

    def gradients(self, variable: int) -> list[Tensor]:
        return [self.weights.grad[variable : variable + 1]]


def make_step(run: shoal.Run, model: LassoModel, schedule: shoal.BlockSchedule, state: dict, step) -> dict:
    """Schedule, update, aggregate; returns the schedule's next state."""
    drawn = schedule.draw(state)
    mine = schedule.share(drawn, run.rank, run.size)
    model.weights.grad = torch.zeros_like(model.weights)
    model.weights.grad[mine] = -model.changes(mine)
    run.exchange()
    before = model.weights.detach().clone()
    step()
    return schedule.advance(state, drawn, model.weights.detach() - before)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--variables", type=int, default=500)
    parser.add_argument("--correlation", type=float, default=0.7, help="of the columns of a group of five")
    parser.add_argument("--penalty", type=float, default=0.1, help="share of the one at which all weights are 0")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--goal", type=float, default=0.0, help="stop at this objective")
    parser.add_argument("--width", type=int, default=8, help="variables that are updated in a step, by all workers")
    parser.add_argument("--threshold", type=float, default=0.4, help="largest correlation of two of them")
    parser.add_argument("--order", choices=("priority", "turn"), default="priority")
    parser.add_argument("--delay", type=int, default=0, help="k of the plan's stale(k)")
    args = parser.parse_args()
    for name in ("samples", "variables", "steps", "width"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: must be at least 1")
    if not 0 <= args.correlation < 1:
        parser.error(f"--correlation {args.correlation:g}: must be at least 0 and less than 1")
    if args.penalty <= 0:
        parser.error(f"--penalty {args.penalty:g}: must be greater than 0")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    model = LassoModel(args.samples, args.variables, args.correlation, args.penalty)
    schedule = shoal.BlockSchedule(
        args.variables,
        args.width,
        dependence=model.correlations,
        threshold=args.threshold,
        order=args.order,
        delay=args.delay,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, schedule, optimizer = run.join(model, schedule, optimizer, loss="sum")
    schedule.watch(optimizer, model.gradients)
    state = run.state(step=0, schedule=schedule.first_state())
    while state.step < args.steps:
        state.schedule = make_step(run, model, schedule, state.schedule, optimizer.step)
        objective = model.objective()
        run.log(loss=objective)
        state.step += 1
        if objective <= args.goal:  # all workers hold the same weights
            break
    objective, used = model.objective(), int((model.weights != 0).sum())
    run.report(objective=objective, steps=state.step, used=used)
    if run.is_main:
        print(f"objective {objective:.12g} after {state.step} steps, {used} variables used")


if __name__ == "__main__":
    main()
