"""A network from a file that lists its layers, as TOML or JSON.

    [[layer]]
    type = "conv"           # 1x28x28 -> 16x28x28
    channels = 16
    kernel = 3
    padding = 1
    [[layer]]
    type = "relu"
    [[layer]]
    type = "maxpool"        # -> 16x14x14
    size = 2
    [[layer]]
    type = "flatten"
    [[layer]]
    type = "linear"         # without units: one for each class

Sizes of inputs are those of the layer before, so nobody writes them. Files hold no code. A network is first laid out
without memory, so one that is too large, or whose layers do not fit each other, is refused before anything is made.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import nn

MOST_LAYERS, MOST_PARAMETERS, LARGEST_FILE = 500, 1 << 30, 1 << 16
Shape = Sequence[int]
"""Of one sample."""
Whole = Annotated[int, Meta(ge=1, le=1 << 20)]
From0 = Annotated[int, Meta(ge=0, le=1 << 20)]


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """One entry of the file."""

    def make(self, shape: Shape, classes: int) -> nn.Module:
        raise NotImplementedError


class Linear(Layer, frozen=True, tag="linear"):
    units: Whole | None = None
    """Without: as many as there are classes."""

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Linear(shape[-1], self.units or classes)


class Conv(Layer, frozen=True, tag="conv"):
    channels: Whole
    kernel: Whole = 3
    stride: Whole = 1
    padding: From0 = 0

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Conv2d(shape[0], self.channels, self.kernel, self.stride, self.padding)


class MaxPool(Layer, frozen=True, tag="maxpool"):
    size: Whole = 2

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.MaxPool2d(self.size)


class AveragePool(Layer, frozen=True, tag="avgpool"):
    size: Whole = 2

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.AvgPool2d(self.size)


class Norm(Layer, frozen=True, tag="norm"):
    """GroupNorm, which looks at one sample alone: every number of workers computes the same."""

    groups: Whole = 1

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.GroupNorm(self.groups, shape[0])


class Dropout(Layer, frozen=True, tag="dropout"):
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Dropout(self.share)


class Relu(Layer, frozen=True, tag="relu"):
    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.ReLU()


class Tanh(Layer, frozen=True, tag="tanh"):
    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Tanh()


class Flatten(Layer, frozen=True, tag="flatten"):
    def make(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Flatten()


AnyLayer = Linear | Conv | MaxPool | AveragePool | Norm | Dropout | Relu | Tanh | Flatten


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds."""

    layer: Annotated[list[AnyLayer], Meta(min_length=1, max_length=MOST_LAYERS)]

    def build(self, inputs: Shape, classes: int) -> nn.Sequential:
        """Make the network for samples of this shape; SystemExit says which layer does not fit."""
        with torch.device("meta"):  # shapes without memory
            shapes = self._lay_out(torch.Size(inputs), classes)
        layers = zip(self.layer, shapes, strict=True)
        return nn.Sequential(*(layer.make(shape, classes) for layer, shape in layers))

    def _lay_out(self, shape: Shape, classes: int) -> list[Shape]:
        """Return the shape of each layer's inputs."""
        shapes, parameters = [], 0
        for number, layer in enumerate(self.layer, 1):
            shapes.append(shape)
            try:
                module = layer.make(shape, classes)
                shape = module(torch.zeros(1, *shape)).shape[1:]
            except (RuntimeError, ValueError, IndexError) as error:
                name = f"layer {number} ({layer.__struct_config__.tag})"
                said = str(error).splitlines()[0]
                raise SystemExit(f"{name} does not take {_by(shape)} numbers a sample: {said}") from None
            parameters += sum(math.prod(p.shape) for p in module.parameters())
        if parameters > MOST_PARAMETERS:
            raise SystemExit(f"the layers have {parameters:,} parameters; at most {MOST_PARAMETERS:,} are made")
        if shape != (classes,):
            raise SystemExit(
                f"the last layer gives {_by(shape)} numbers a sample and there are {classes} classes; end with "
                "flatten, and linear without units"
            )
        return shapes


def read_layers(path: Path) -> Network:
    """Read a TOML or JSON file; SystemExit says what is wrong with it."""
    decoders = {".toml": msgspec.toml.decode, ".json": msgspec.json.decode}
    if path.suffix.lower() not in decoders:
        raise SystemExit(f"cannot read layers from {str(path)!r}; give a file of {' or '.join(decoders)}")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SystemExit(f"cannot read {str(path)!r}: {error.strerror}") from None
    if len(data) > LARGEST_FILE:
        raise SystemExit(f"{path.name} has more than {LARGEST_FILE} bytes; a file of layers is short")
    try:
        return decoders[path.suffix.lower()](data, type=Network)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path.name}: {error}; there are {', '.join(sorted(_tags()))}") from None


def _tags() -> list[str]:
    return [kind.__struct_config__.tag for kind in AnyLayer.__args__]


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))
