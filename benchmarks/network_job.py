"""What contestants of `network.py` and `wire.py` train: `shoal run … network_job.py --model cnn --data DIR --steps 20`.

The model, optimizer and data of examples/mnist.py and examples/shakespeare.py, or an MLP on MNIST, for so many steps;
with --epochs, stretch after stretch of the data, with a report after each, to a goal that $SHOAL_UNTIL names. With
--momentum the optimizer is SGD, whose rate falls from stretch to stretch: error feedback is a method for SGD.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from network_data import CONTEXT, mnist, read, shakespeare
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import shoal

WIDTH, DEPTH = 256, 6
HIDDEN = 1024
"""Of the MLP's two hidden layers: 1.86 M parameters that compute little, so that what travels is most of a step."""
BATCH = {"cnn": 64, "mlp": 128, "transformer": 8}
LEARNING_RATE = {"cnn": 2e-3, "mlp": 1e-3, "transformer": 1e-3}
SGD_RATE = {"cnn": 0.02, "mlp": 0.05, "transformer": 0.01}
SGD_DECAY = 0.95
"""What is left of SGD's rate after a stretch."""


def make_model(name: str, letters: int = 65) -> nn.Module:
    if name == "transformer":
        return shakespeare.Writer(letters, WIDTH, DEPTH, CONTEXT)
    return mnist.network() if name == "cnn" else perceptron()


def perceptron() -> nn.Module:
    layers = (nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def make_optimizer(name: str, model: nn.Module, momentum: float | None) -> torch.optim.Optimizer:
    if momentum is None:
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE[name])
    return torch.optim.SGD(model.parameters(), lr=SGD_RATE[name], momentum=momentum)


class Stretch(Dataset):
    """`size` samples of `data`, from `begin` on and round again, in an order that is always the same."""

    def __init__(self, data: Dataset, size: int) -> None:
        self.data, self.size, self.begin = data, size, 0
        self.order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.data[self.order[(self.begin + index) % len(self.order)]]


def loss_of(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    output = model(x)
    return F.cross_entropy(output.flatten(0, 1), y.flatten()) if name == "transformer" else F.cross_entropy(output, y)


def judge(name: str, model: nn.Module, held_out: Dataset, device: torch.device) -> dict[str, float]:
    if name == "transformer":
        return {"loss": shakespeare.evaluate(model, held_out, device)}
    return {"accuracy": mnist.evaluate(model, held_out, device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=BATCH, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of a stretch")
    parser.add_argument("--epochs", type=int, default=0, help="at most so many stretches, each with a report")
    parser.add_argument("--momentum", type=float, help="train with SGD and this momentum instead of AdamW")
    args = parser.parse_args()
    run = shoal.start()
    train, held_out, letters = read(args.model, args.data)
    stretch = Stretch(train, args.steps * BATCH[args.model] * run.size)
    model = make_model(args.model, letters).to(run.device)
    optimizer = make_optimizer(args.model, model, args.momentum)
    loader = DataLoader(stretch, batch_size=BATCH[args.model], shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, SGD_DECAY) if args.momentum is not None else None
    for epoch in run.epochs(max(1, args.epochs)):
        stretch.begin = epoch * len(stretch)
        for x, y in loader:
            loss_of(args.model, model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        if args.epochs:
            run.report(**judge(args.model, model, held_out, run.device))


if __name__ == "__main__":
    main()
