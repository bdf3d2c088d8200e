"""Trains any model of the table in `models/`, on MNIST or on data that it makes itself.

    python examples/zoo.py --model resnet18
    shoal run --workers 2 examples/zoo.py --model gan --data DIR --epochs 2

Shoal asks for the same two lines whatever the model is: `start` and `join`.
"""

import argparse
from pathlib import Path

import torch
from models import TABLE, Entry
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import shoal

MADE_UP = 500
"""Samples of a test set that is made up."""
SHOWN = 1000
"""Test samples behind the figures of every epoch but the last: the whole set costs as much as an epoch."""


@torch.no_grad()
def evaluate(entry: Entry, model: nn.Module, data: Dataset, device: torch.device) -> dict[str, float]:
    """The mean loss of every part on `data`, and for a classifier the share it names correctly."""
    model.eval()
    sums: dict[str, float] = {}
    seen = 0
    for batch in DataLoader(data, batch_size=250):
        *inputs, target = batch = [tensor.to(device) for tensor in batch]
        found = {f"{part}_loss".lstrip("_"): loss(model, *batch).item() for part, loss in entry.losses.items()}
        if entry.kind == "classifier":
            found["accuracy"] = (model(*inputs).argmax(-1) == target).float().mean().item()
        sums = {name: sums.get(name, 0.0) + value * len(target) for name, value in found.items()}
        seen += len(target)
    model.train()
    return {name: value / seen for name, value in sums.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=TABLE, required=True)
    parser.add_argument("--data", type=Path, help="folder of the MNIST files, or of the text; else data are made up")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--lr", type=float, help="of AdamW; what suits the model if left out")
    parser.add_argument("--width", type=int, help="of the model; its own default if left out")
    parser.add_argument("--limit", type=int, help="train on LIMIT samples at most")
    parser.add_argument("--onnx", action="store_true", help="register it with an ONNX program and samples, too")
    args = parser.parse_args()
    if args.data is not None:
        if not TABLE[args.model].files:
            parser.error(f"{args.model} learns from made-up data only; leave out --data {args.data}")
        for name in TABLE[args.model].files:
            if not (args.data / name).is_file():
                parser.error(
                    f"no {name} in {args.data}, which {args.model} learns from; leave out --data to make some up"
                )
    return args


def main() -> None:
    args = arguments()
    entry = TABLE[args.model]
    run = shoal.start()
    train = entry.data("train", args.limit, args.data)
    test = entry.data("test", None if args.data else MADE_UP, args.data)
    model = (entry.make(width=args.width) if args.width else entry.make()).to(run.device)
    optimizers = entry.optimizers(model, lr=args.lr or entry.rate)
    first = tuple(test[number] for number in range(16))
    example = tuple(torch.stack(column).to(run.device) for column in list(zip(*first, strict=True))[:-1])
    run.register(args.model, example=example if args.onnx else None)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True)
    part = Subset(test, range(min(SHOWN, len(test))))
    model, *optimizers, loader = run.join(model, *optimizers, loader)

    for epoch in run.epochs(args.epochs):
        for batch in loader:
            run.log(loss=entry.step(model, optimizers, [tensor.to(run.device) for tensor in batch]))
        metrics = evaluate(entry, model, test if epoch == args.epochs - 1 else part, run.device)
        run.report(**metrics)
        if run.is_main:
            print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


if __name__ == "__main__":
    main()
