"""A deep network trained by schedule, update, aggregate: in every step the groups of neurons that change most.

    python examples/scheduled_mlp.py
    shoal run --workers 4 examples/scheduled_mlp.py --width 8

A block is a group of neurons of one layer with the weights that lead into it. All workers draw the same blocks and see
the same batch; each takes the gradient of its own blocks alone, so the backward pass of a worker ends at the lowest
layer among them. A block depends on those of the neighbouring layers, because the gradient of one holds the weights of
the other, so they are never updated together. Do not use it to save time where data parallelism fits: it is for
weights, not samples, that are too many for one worker.
"""

import argparse
from itertools import pairwise

import torch
from torch import Tensor, nn

import shoal


class BlockedNetwork(nn.Module):
    """A perceptron whose layers are cut into groups of `group` neurons."""

    def __init__(self, sizes: list[int], group: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after, dtype=torch.float64) for before, after in pairwise(sizes))
        self.places = [
            (number, slice(first, min(first + group, size)))
            for number, size in enumerate(sizes[1:])
            for first in range(0, size, group)
        ]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)

    def dependence(self, block: int, others: list[int]) -> Tensor:
        layer = self.places[block][0]
        return torch.tensor([float(abs(self.places[other][0] - layer) == 1) for other in others])

    def take_gradients(self, loss: Tensor, blocks: list[int]) -> None:
        """Put the gradients of these blocks, and zeros for all others, where they are exchanged."""
        numbers = sorted({self.places[block][0] for block in blocks})
        wanted = [parameter for number in numbers for parameter in self.layers[number].parameters()]
        found = dict(zip(wanted, torch.autograd.grad(loss, wanted), strict=True)) if wanted else {}
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        for block in blocks:
            number, neurons = self.places[block]
            for parameter, part in zip(self.layers[number].parameters(), self.gradients(block), strict=True):
                part.copy_(found[parameter][neurons])

    def gradients(self, block: int) -> list[Tensor]:
        number, neurons = self.places[block]
        return [parameter.grad[neurons] for parameter in self.layers[number].parameters()]

    def sizes_of_changes(self, before: list[Tensor]) -> Tensor:
        """Return by how much each block differs from what it was: the norm, per weight."""
        changes = [after.detach() - old for after, old in zip(self.parameters(), before, strict=True)]
        squares = [w.square().mean(1) + b.square() for w, b in zip(changes[::2], changes[1::2], strict=True)]
        return torch.stack([squares[number][neurons].mean().sqrt() for number, neurons in self.places])


def made_data(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points on three interleaved spirals."""
    source = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (samples,), generator=source)
    radius = torch.rand(samples, generator=source, dtype=torch.float64)
    angle = 4 * radius + label * 2.0944 + 0.1 * torch.randn(samples, generator=source, dtype=torch.float64)
    return torch.stack([radius * angle.sin(), radius * angle.cos()], 1), label


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32], help="neurons of the hidden layers")
    parser.add_argument("--group", type=int, default=4, help="neurons of a block")
    parser.add_argument("--width", type=int, default=6, help="blocks that are updated in a step, by all workers")
    parser.add_argument("--order", choices=("priority", "turn"), default="priority")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()
    for name in ("group", "width", "steps", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: must be at least 1")
    if min(args.hidden) < 1 or args.lr <= 0:
        parser.error("--hidden and --lr must be greater than 0")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    model = BlockedNetwork([2, *args.hidden, 3], args.group)
    x, label = made_data(1024)
    schedule = shoal.BlockSchedule(
        len(model.places), args.width, dependence=model.dependence, threshold=0.5, order=args.order
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model, schedule, optimizer = run.join(model, schedule, optimizer, loss="sum")
    schedule.watch(optimizer, model.gradients)
    state = run.state(step=0, schedule=schedule.first_state())
    while state.step < args.steps:
        rows = torch.randint(len(x), (args.batch,), generator=torch.Generator().manual_seed(state.step))
        drawn = schedule.draw(state.schedule)
        loss = nn.functional.cross_entropy(model(x[rows]), label[rows])
        model.take_gradients(loss, schedule.share(drawn, run.rank, run.size))
        run.exchange()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
        state.schedule = schedule.advance(state.schedule, drawn, model.sizes_of_changes(before))
        run.log(loss=loss)
        state.step += 1
    with torch.no_grad():
        guess = model(x)
        loss, right = nn.functional.cross_entropy(guess, label), (guess.argmax(1) == label).double().mean()
    run.report(loss=loss, accuracy=right)
    if run.is_main:
        print(f"loss {loss:.9g}, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
