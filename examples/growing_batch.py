"""A batch that grows from stage to stage, on as many workers as each stage can use.

    python examples/growing_batch.py
    shoal run --workers 1 --spare 3 examples/growing_batch.py --stages 4x1 64x4

A stage is BATCHxWORKERS: samples of a step, and workers that share them. Small batches first, for many cheap steps;
larger ones when the noise of gradients is what is left (Smith et al., "Don't Decay the Learning Rate, Increase the
Batch Size", ICLR 2018). Few samples gain little from many workers, so each stage has its own number (`run.stage`).
`--work` and `--overhead` make a step as long as a larger model would, whatever else the machine does.
"""

import argparse
import time

import torch
from torch import nn

import shoal


def stage(text: str) -> tuple[int, int]:
    batch, _, workers = text.partition("x")
    if not (batch.isdecimal() and workers.isdecimal() and int(batch) and int(workers)):
        raise argparse.ArgumentTypeError(f"{text!r} is no stage; write BATCHxWORKERS, as in 64x4")
    return int(batch), int(workers)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=stage, nargs="+", default=[(4, 1), (16, 2), (64, 4)], metavar="BATCHxWORKERS")
    parser.add_argument("--steps", type=int, default=100, help="of each stage")
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--work", type=float, default=0.0, help="seconds that a sample takes one worker, at least")
    parser.add_argument("--overhead", type=float, default=0.0, help="seconds that a step takes beside its samples")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # before the start, so that the record counts one core for each worker
    run = shoal.start()
    torch.manual_seed(0)
    model = nn.Linear(args.features, 1)
    goal = torch.randn(args.features, 1)
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=args.lr))
    state = run.state(step=0)
    while state.step < args.steps * len(args.stages):
        batch, workers = args.stages[state.step // args.steps]
        run.stage(f"batch {batch}", workers=workers)
        # the same batch for any number of workers; each takes every size-th sample of it
        draws = torch.Generator().manual_seed(state.step)
        x = torch.randn(batch, args.features, generator=draws)
        y = x @ goal + 0.5 * torch.randn(batch, 1, generator=draws)
        rank, size = run.rank, run.size
        x, y = x[rank::size], y[rank::size]
        time.sleep(args.overhead + args.work * len(x))
        run.weight(len(x))
        loss = (model(x) - y).square().mean() if len(x) else model(torch.zeros(1, args.features)).sum() * 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
    with torch.no_grad():
        error = float((model.weight.T - goal).square().sum() + model.bias.square().sum())
    run.report(loss=error + 0.25)  # the expected loss on new samples, by arithmetic
    if run.is_main:
        print(f"expected loss {error + 0.25:.4f}", flush=True)


if __name__ == "__main__":
    main()
