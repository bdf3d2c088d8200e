"""Trains a classifier of `models/` on a table, on arrays, on images or on a built-in set, and says what it got wrong.

    python examples/classify.py --data digits --model mlp
    shoal run --workers 2 examples/classify.py --data iris.csv --label species
    shoal run --workers 2 examples/classify.py --data photos/ --model resnet18      # photos/<class>/*.png
    shoal run --workers 2 examples/classify.py --data digits --layers examples/lenet.toml --device cpu

`shoal watch` starts it from a form. At the end worker 0 writes `evaluation.json` beside the record: the confusion
matrix, and samples that were named wrongly.
"""

import argparse
import csv
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from models import TABLE
from models.configured import read_layers
from models.data import images
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import shoal

SIDE = 28
MOST_SAMPLES, MOST_BYTES = 200_000, 2 << 30
WRONG = 24
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm")


@dataclass
class LabelledData:
    """All samples: images of 1x28x28 or rows of numbers, and the number of each one's class."""

    inputs: Tensor
    labels: Tensor
    classes: list[str]

    @property
    def is_table(self) -> bool:
        return self.inputs.dim() == 2

    def split(self) -> tuple[TensorDataset, TensorDataset, Tensor]:
        """Four fifths to learn from, the rest to judge by, and where the latter stood; alike on every worker."""
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))
        cut = max(1, len(order) * 4 // 5)
        train, test = order[:cut], order[cut:] if cut < len(order) else order
        inputs = self._scaled(self.inputs[train])
        learn = TensorDataset(inputs(self.inputs[train]), self.labels[train])
        return learn, TensorDataset(inputs(self.inputs[test]), self.labels[test]), test

    @staticmethod
    def _scaled(train: Tensor):
        """Mean 0 and deviation 1 over what is learnt from: of each column of a table, of all pixels of images."""
        dims = (0,) if train.dim() == 2 else None
        mean, deviation = train.mean(dims), train.std(dims, correction=0).clamp_min(1e-6)
        return lambda inputs: (inputs - mean) / deviation


def read_csv(path: Path, label: str) -> LabelledData:
    """A header, then rows of numbers; the class is in the column `label`, or in the last."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    return _table(path, header, rows, label)


def read_arff(path: Path, label: str) -> LabelledData:
    """Weka's format: `@attribute` lines instead of a header, then `@data` and rows; the class may be nominal."""
    header, rows, data = [], [], False
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        words = line.strip()
        if not words or words.startswith("%"):
            continue
        if data:
            rows += [[value.strip(" '\"") for value in next(csv.reader([words], quotechar="'", skipinitialspace=True))]]
        elif words.lower().startswith("@attribute"):
            found = re.match(r"""@attribute\s+('[^']*'|"[^"]*"|\S+)\s+\S""", words, re.IGNORECASE)
            if found is None:
                raise SystemExit(f"{path.name}: {words!r} names no attribute with a type")
            header.append(found.group(1).strip("'\""))
        data = data or words.lower().startswith("@data")
    return _table(path, header, rows, label)


def _table(path: Path, header: list[str], rows: list[list[str]], label: str) -> LabelledData:
    if label and label not in header:
        raise SystemExit(f"{path.name} has no column {label!r}; it has {', '.join(header)}")
    at = header.index(label) if label else len(header) - 1
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise SystemExit(f"{path.name}, line {number}: {len(row)} values where the header has {len(header)}")
    try:
        numbers = [[float(value) for column, value in enumerate(row) if column != at] for row in rows[:MOST_SAMPLES]]
    except ValueError as error:
        raise SystemExit(f"{path.name}: {error}; every column but the class must hold numbers") from None
    if not numbers or not numbers[0]:
        raise SystemExit(f"{path.name} holds no rows of numbers under its header")
    return _labelled(torch.tensor(numbers), [row[at] for row in rows[:MOST_SAMPLES]])


def read_npz(path: Path) -> LabelledData:
    """Arrays `x` and `y`: rows, or images of height x width, with or without channels."""
    with np.load(path, allow_pickle=False) as arrays:  # code in a file is not run
        missing = {"x", "y"} - set(arrays)
        if missing:
            raise SystemExit(f"{path.name} holds {', '.join(arrays) or 'nothing'}; name its arrays x and y")
        inputs, labels = arrays["x"][:MOST_SAMPLES], arrays["y"][:MOST_SAMPLES]
    if len(inputs) != len(labels) or not len(inputs):
        raise SystemExit(f"{path.name}: x has {len(inputs)} samples and y {len(labels)}; they must be as many")
    return _labelled(_images(torch.from_numpy(inputs.astype(np.float32))), [str(each) for each in labels.tolist()])


def read_folder(path: Path) -> LabelledData:
    """One folder for each class, with its images."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES and file.parent != path)
    if not files:
        raise SystemExit(f"no images in {path}; put those of each class into a folder of its name")
    inputs = torch.stack([_picture(file.read_bytes(), file.name) for file in files[:MOST_SAMPLES]])
    return _labelled(inputs, [file.parent.name for file in files[:MOST_SAMPLES]])


def read_zip(path: Path) -> LabelledData:
    """The same in an archive, read without unpacking it to the disk."""
    inputs, names = [], []
    with zipfile.ZipFile(path) as archive:
        found = [each for each in archive.infolist() if each.filename.lower().endswith(PICTURES)]
        if sum(each.file_size for each in found) > MOST_BYTES or len(found) > MOST_SAMPLES:
            raise SystemExit(f"{path.name} unpacks to more than {MOST_BYTES >> 30} GB or {MOST_SAMPLES} files")
        for each in found:
            *folders, name = each.filename.split("/")
            if folders:
                inputs.append(_picture(archive.read(each), name))
                names.append(folders[-1])
    if not inputs:
        raise SystemExit(f"no images in folders in {path.name}; put those of each class into a folder of its name")
    return _labelled(torch.stack(inputs), names)


def _picture(data: bytes, name: str) -> Tensor:
    import io

    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return torch.from_numpy(np.asarray(image.convert("L").resize((SIDE, SIDE)), np.float32).copy())[None] / 255
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise SystemExit(f"{name} is not an image: {error}") from None


def _images(inputs: Tensor) -> Tensor:
    """Rows stay rows; images become grey, 28x28."""
    if inputs.dim() == 2:
        return inputs
    if inputs.dim() == 4:
        inputs = inputs.mean(-1 if inputs.shape[-1] <= 4 else 1)
    if inputs.dim() != 3:
        raise SystemExit(f"x has the shape {tuple(inputs.shape)}; give rows, or images of height x width x channels")
    return F.interpolate(inputs[:, None], size=(SIDE, SIDE), mode="bilinear", align_corners=False)


def _labelled(inputs: Tensor, names: list[str]) -> LabelledData:
    classes = sorted(set(names))
    if not 2 <= len(classes) <= 1000:
        raise SystemExit(f"the data have {len(classes)} classes; a classifier needs 2 to 1000")
    numbers = {name: number for number, name in enumerate(classes)}
    return LabelledData(inputs, torch.tensor([numbers[name] for name in names]), classes)


def read_digits() -> LabelledData:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _labelled(_images(torch.tensor(bunch.images, dtype=torch.float32)), [str(each) for each in bunch.target])


def read_patterns() -> LabelledData:
    inputs, labels = images("train", 2000, None).tensors
    return _labelled(inputs, [str(each) for each in labels.tolist()])


def read(data: str, label: str) -> LabelledData:
    """Whatever `--data` names."""
    known = {"digits": read_digits, "patterns": read_patterns}
    if data in known:
        return known[data]()
    path = Path(data)
    if path.is_dir():
        return read_folder(path)
    readers = {
        ".csv": lambda: read_csv(path, label),
        ".arff": lambda: read_arff(path, label),
        ".npz": lambda: read_npz(path),
        ".zip": lambda: read_zip(path),
    }
    if path.suffix.lower() not in readers or not path.is_file():
        raise SystemExit(
            f"cannot read {data!r}; give {', '.join([*known, 'a CSV, an NPZ, a ZIP or a folder of images'])}"
        )
    return readers[path.suffix.lower()]()


def network(name: str, data: LabelledData, width: int = 128) -> nn.Module:
    """The model of the table with as many outputs as there are classes; of a table of numbers, a perceptron."""
    if data.is_table:
        if name != "mlp":
            raise SystemExit(f"{name} reads images, and these data are rows of numbers; take mlp")
        columns = data.inputs.shape[1]
        return nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, len(data.classes)))
    model = TABLE[name].make()
    last = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, attribute = last.rpartition(".")
    old = model.get_submodule(last)
    setattr(model.get_submodule(parent), attribute, nn.Linear(old.in_features, len(data.classes)))
    return model


def chosen_device(name: str, given: torch.device) -> torch.device:
    """What `--device` names; without it, what the run has given this worker."""
    if not name:
        return given
    try:
        device = torch.device(name)
        torch.zeros(1, device=device) + 1
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise SystemExit(f"--device {name!r} cannot be used here: {said}; leave it out, or write cpu") from None
    return device


@torch.no_grad()
def predict(model: nn.Module, test: TensorDataset, device: torch.device) -> Tensor:
    model.eval()
    found = torch.cat([model(x.to(device)).argmax(1).cpu() for x, _ in DataLoader(test, batch_size=256)])
    model.train()
    return found


def evaluation(data: LabelledData, named: Tensor, places: Tensor) -> dict[str, object]:
    """What `evaluation.json` holds."""
    size, labels = len(data.classes), data.labels[places]
    confusion = torch.bincount(labels * size + named, minlength=size * size).reshape(size, size)
    wrong = (labels != named).nonzero().flatten()[:WRONG].tolist()
    return {
        "classes": data.classes,
        "confusion": confusion.tolist(),
        "accuracy": (labels == named).float().mean().item(),
        "samples": len(labels),
        "wrong": [_shown(data, int(places[one]), int(named[one])) for one in wrong],
    }


def _shown(data: LabelledData, place: int, named: int) -> dict[str, object]:
    about = {"index": place, "is": int(data.labels[place]), "named": named}
    sample = data.inputs[place]
    if data.is_table:
        return about | {"values": sample[:12].tolist()}
    low, high = sample.min(), sample.max()
    pixels = ((sample[0] - low) / (high - low).clamp_min(1e-6) * 255).round().int()
    return about | {"pixels": pixels.tolist()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", required=True, help="digits, patterns, a CSV, an ARFF, an NPZ, a ZIP or a folder of images"
    )
    parser.add_argument("--label", default="", help="column of a CSV that holds the class; else the last")
    parser.add_argument("--model", choices=[name for name in TABLE if TABLE[name].kind == "classifier"], default="mlp")
    parser.add_argument("--layers", type=Path, help="a TOML or JSON file that lists the layers, in place of --model")
    parser.add_argument("--device", default="", help="cpu, cuda, cuda:1, ...; else what the run gives each worker")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    run = shoal.start()
    data = read(args.data, args.label)
    train, test, places = data.split()
    device = chosen_device(args.device, run.device)
    if args.layers:
        model = read_layers(args.layers).build(data.inputs.shape[1:], len(data.classes)).to(device)
    else:
        model = network(args.model, data).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TABLE[args.model].rate)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        named = predict(model, test, device)
        accuracy = (named == test.tensors[1]).float().mean().item()
        run.report(accuracy=accuracy)
        if run.is_main:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}")
    if run.is_main:
        found = evaluation(data, predict(model, test, device), places)
        (run.dir / "evaluation.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
