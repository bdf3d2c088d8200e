"""Variance-reduced gradients: a stage that takes the whole gradient, on workers of its own, and many small steps.

    python examples/svrg.py
    shoal run --workers 4 examples/svrg.py --step-workers 1

    full = mean gradient of all samples at the anchor                       full stage
    step = gradient(sample, here) - gradient(sample, anchor) + full         step stage, `--steps` times

The variance of a step falls with the distance to the anchor, so a constant learning rate converges linearly on strongly
convex problems (Johnson & Zhang, "Accelerating Stochastic Gradient Descent using Predictive Variance Reduction", NIPS
2013). The full stage is a sum over all samples and gains from many workers; the steps follow each other and gain
little: `--full-workers` and `--step-workers` say how many workers take part in each. The others'
gradients weigh 0. Do not use it for deep networks: gradients at the anchor are no help there a few steps later.
"""

import argparse

import torch
from torch import Tensor, nn

import shoal


class LogisticRegression(nn.Module):
    """With an L2 penalty, so that it is strongly convex. The anchor is state like the weights: newcomers get it too."""

    def __init__(self, samples: int, features: int, penalty: float, seed: int = 0) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, features, generator=source, dtype=torch.float64)
        self.signs = (self.inputs @ torch.randn(features, generator=source, dtype=torch.float64)).sign()
        self.penalty = penalty
        self.weights = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.register_buffer("anchor", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("full", torch.zeros(features, dtype=torch.float64))

    def gradient(self, weights: Tensor, rows: slice | Tensor) -> Tensor:
        """Return the mean gradient of these rows."""
        x, sign = self.inputs[rows], self.signs[rows]
        slope = -sign * torch.sigmoid(-sign * (x @ weights))
        return x.T @ slope / max(1, len(sign)) + self.penalty * weights


def exchange(run: shoal.Run, model: LogisticRegression, own: Tensor, samples: int) -> Tensor:
    """Return the mean of the workers' gradients, each weighted by its samples."""
    run.weight(samples)
    model.weights.grad = own
    run.exchange()
    return model.weights.grad


def set_anchor(run: shoal.Run, model: LogisticRegression, workers: int) -> None:
    """Full stage: each of the first `workers` workers takes an equal piece of the samples."""
    samples, workers = len(model.signs), min(workers, run.size)
    begin, end = (samples * min(rank, workers) // workers for rank in (run.rank, run.rank + 1))
    model.anchor.copy_(model.weights.detach())
    model.full.copy_(exchange(run, model, model.gradient(model.anchor, slice(begin, end)), end - begin))


def step_gradient(model: LogisticRegression, rows: Tensor) -> Tensor:
    here, anchor = model.gradient(model.weights.detach(), rows), model.gradient(model.anchor, rows)
    return here - anchor + model.full


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--penalty", type=float, default=0.1, help="of the squared weights; convexity and conditioning")
    parser.add_argument("--anchors", type=int, default=8, help="full stages")
    parser.add_argument("--steps", type=int, default=250, help="steps after each full stage")
    parser.add_argument("--batch", type=int, default=4, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--full-workers", type=int, default=0, help="workers of the full stage; 0: all")
    parser.add_argument("--step-workers", type=int, default=0, help="workers of the steps; 0: all")
    args = parser.parse_args()
    for name in ("samples", "features", "anchors", "steps", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: must be at least 1")
    for name in ("penalty", "lr"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} {getattr(args, name):g}: must be greater than 0")
    if min(args.full_workers, args.step_workers) < 0:
        parser.error("--full-workers and --step-workers: a number of workers, or 0 for all")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    model = LogisticRegression(args.samples, args.features, args.penalty)
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=args.lr))
    draws = torch.Generator().manual_seed(1000 + run.worker_id)
    state = run.state(anchors=0, steps=0)
    while state.anchors < args.anchors:
        if state.steps == 0:
            set_anchor(run, model, args.full_workers or run.size)
            if run.is_main:
                print(f"anchor {state.anchors}: gradient {model.full.norm():.3e}", flush=True)
        rows = torch.randint(args.samples, (args.batch,), generator=draws)
        takes_part = run.rank < (args.step_workers or run.size)
        exchange(run, model, step_gradient(model, rows), args.batch if takes_part else 0)
        optimizer.step()
        run.log(gradient=float(model.full.norm()))
        state.steps = (state.steps + 1) % args.steps
        state.anchors += state.steps == 0
    run.report(gradient=float(model.full.norm()))


if __name__ == "__main__":
    main()
