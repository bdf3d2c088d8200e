"""Servables: whatever can be asked behind one `predict`. A model is one kind; tables, ensembles and chains are others.

Implementations are called from several threads at once, at most as many as the model's `concurrency`. They must not
keep the arrays they are given.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal.serve.errors import RequestError
from shoal.serve.tensors import Array, Tensors, TensorSpec


@runtime_checkable
class Servable(Protocol):
    """The contract. With every first dimension declared as -1, requests of several clients may come as one call."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Declared inputs; empty if it takes what it is given."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Declared outputs; empty if unknown."""

    def predict(self, inputs: Tensors) -> Tensors:
        """Outputs for the inputs, row by row. RequestError: the inputs are to blame, whatever else: the model."""


@runtime_checkable
class RemoteServable(Servable, Protocol):
    """A servable that computes elsewhere: it is asked on the event loop, without a thread that waits."""

    @property
    def width(self) -> int:
        """Batches that it computes at the same time, as of now; 1 or more."""

    def submit(self, inputs: Tensors) -> "Future[Tensors]":
        """As `predict`, later."""


def is_batchable(servable: Servable) -> bool:
    """Whether rows of several requests may be predicted together."""
    return bool(servable.inputs) and all(spec.is_batched for spec in (*servable.inputs, *servable.outputs))


class LookupTable:
    """Rows of numbers by key: embeddings, precomputed answers."""

    inputs = (TensorSpec("key", "BYTES", (-1,)),)

    def __init__(self, rows: Mapping[str, Sequence[float]]) -> None:
        if not rows or len({len(row) for row in rows.values()}) != 1:
            raise RequestError("a lookup table needs at least one row, and all rows of the same length")
        # By bytes, because that is how keys come in requests.
        self._at = {key.encode(): at for at, key in enumerate(rows)}
        self._rows = np.array(list(rows.values()), dtype=np.float32)
        self.outputs = (TensorSpec("value", "FP32", (-1, self._rows.shape[1])),)

    def predict(self, inputs: Tensors) -> Tensors:
        try:
            return {"value": self._rows[[self._at[key] for key in inputs["key"]]]}
        except KeyError as missing:
            raise RequestError(f"the table has no key {str(missing)[:80]}") from None


class EnsembleServable:
    """The weighted mean of several servables that take the same inputs and give the same outputs."""

    def __init__(self, members: Sequence[Servable], weights: Sequence[float] | None = None) -> None:
        if not members or any(each.inputs != members[0].inputs for each in members):
            raise RequestError("members of an ensemble must declare the same inputs")
        self._members = tuple(members)
        self._weights = [1.0 / len(members)] * len(members) if weights is None else list(weights)
        self.inputs, self.outputs = members[0].inputs, members[0].outputs

    def predict(self, inputs: Tensors) -> Tensors:
        return mean_of([each.predict(inputs) for each in self._members], self._weights)


class PipelineServable:
    """One servable after another: the outputs of each are the inputs of the next, in their order."""

    def __init__(self, stages: Sequence[Servable]) -> None:
        if not stages:
            raise RequestError("a pipeline needs at least one stage")
        self._stages = tuple(stages)
        self.inputs, self.outputs = stages[0].inputs, stages[-1].outputs

    def predict(self, inputs: Tensors) -> Tensors:
        outputs = self._stages[0].predict(inputs)
        for stage in self._stages[1:]:
            outputs = stage.predict(renamed(outputs, stage.inputs))
        return outputs


class ObjectServable:
    """Any Python object with `predict`, which gets an array (one input) or a dict of them and returns the same.

    `inputs` and `outputs` of the object, if it has them, declare what it takes; else it gets what the client sends.
    """

    def __init__(self, wrapped: Any) -> None:
        if not callable(getattr(wrapped, "predict", None)):
            raise RequestError(f"{type(wrapped).__name__} has no method predict")
        self._wrapped = wrapped
        self.inputs: tuple[TensorSpec, ...] = tuple(getattr(wrapped, "inputs", ()))
        self.outputs: tuple[TensorSpec, ...] = tuple(getattr(wrapped, "outputs", ()))

    def predict(self, inputs: Tensors) -> Tensors:
        given: Any = next(iter(inputs.values())) if len(inputs) == 1 else inputs
        found = self._wrapped.predict(given)
        if isinstance(found, Mapping):
            return {str(name): as_array(each) for name, each in found.items()}
        return {self.outputs[0].name if self.outputs else "output": as_array(found)}


def as_array(value: Any) -> Array:
    """What a Python object returned, as an array of a type of the protocol."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # As objects: numpy's own strings all have the length of the longest.
        return np.array([str(each).encode() for each in array.ravel()], dtype=object).reshape(array.shape)
    return array


def mean_of(answers: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """The weighted mean, in the type of the first answer."""
    means: Tensors = {}
    for name, first in answers[0].items():
        parts = [weight * answer[name] for weight, answer in zip(weights, answers, strict=True)]
        means[name] = np.sum(parts, axis=0).astype(first.dtype)
    return means


def renamed(tensors: Tensors, specs: Sequence[TensorSpec]) -> Tensors:
    """The tensors under the names of the next stage; those whose names fit keep them."""
    names = [spec.name for spec in specs]
    if not names or set(names) <= set(tensors):
        return {name: tensors[name] for name in names} if names else tensors
    if len(names) != len(tensors):
        raise RequestError(f"a stage takes {', '.join(names)} and the one before it gives {', '.join(tensors)}")
    return dict(zip(names, tensors.values(), strict=True))
