"""Models that consist of several servables and answer as one endpoint.

Unlike `EnsembleServable` and `PipelineServable`, which are one servable made of objects, a composite names other
models of the server: each keeps its own versions, batcher and metrics, and is swapped by itself.

    chain=first>second     the outputs of `first` are the inputs of `second`
    both=first+second      the mean of both
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.serve.servable import mean_of, renamed
from shoal.serve.tensors import Tensors, TensorSpec

Ask = Callable[[str, Tensors], Awaitable[Tensors]]
"""Asks a model of the server by its name."""
Inputs = Callable[[str], tuple[TensorSpec, ...]]
"""Declared inputs of a model, by its name."""


@dataclass(frozen=True)
class CompositeModel:
    """`chain`: one after the other; `mean`: all at once, averaged."""

    name: str
    kind: Literal["chain", "mean"]
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "CompositeModel":
        """`name=a>b` or `name=a+b`."""
        name, equals, body = text.partition("=")
        kind: Literal["chain", "mean"] = "chain" if ">" in body else "mean"
        parts = body.split(">" if kind == "chain" else "+")
        if not equals or len(parts) < 2 or (kind == "chain" and "+" in body):
            raise UsageError(
                f"--combine {text!r} names no parts; write NAME=A>B (one after the other) or NAME=A+B (mean)"
            )
        return cls(check_id(name, "model name"), kind, tuple(check_id(part, "model name") for part in parts))

    async def predict(self, inputs: Tensors, ask: Ask, declared: Inputs) -> Tensors:
        if self.kind == "mean":
            answers = await asyncio.gather(*(ask(part, inputs) for part in self.parts))
            return mean_of(answers, [1.0 / len(self.parts)] * len(self.parts))
        outputs = await ask(self.parts[0], inputs)
        for part in self.parts[1:]:
            outputs = await ask(part, renamed(outputs, declared(part)))
        return outputs
