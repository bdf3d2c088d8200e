"""An ONNX program with other weights: the program of a registered version, refreshed with those of a checkpoint.

An exporter keeps most weights under their names, stores some transposed under names of its own, and folds others into
new constants (a batch normalization into the convolution before it). Which is which is found by value: a constant of
the program that equals a tensor of its version, or that tensor transposed, stands for it. Unless every weight is found,
and is the only one with its values, the program cannot be refreshed, and the user's module has to be given.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.errors import UsageError
from shoal.serve.tensors import Array

Places = dict[str, tuple[str, bool]]
"""Of each constant that stands for a weight: the weight's name, and whether it is stored transposed."""
WAY_OUT = "give --module FILE.py:FUNCTION that returns its module"


class RefreshableProgram:
    """The program of a version whose weights are known."""

    def __init__(self, program: bytes, weights: Mapping[str, Array], ref: str) -> None:
        """UsageError names a weight that the program does not hold as it is."""
        import onnx

        self._model: Any = onnx.load_model_from_string(program)
        self._shapes = {name: each.shape for name, each in weights.items()}
        self._places = find_weights(self._constants(), weights)
        self._ref = ref
        found = {name for name, _ in self._places.values()}
        self._tied = {name: tied_names(name, weights) for name in weights}
        # Counters and other integers are no weights, and an exporter leaves them out.
        lost = [name for name, each in weights.items() if each.dtype.kind == "f" and not found & self._tied[name]]
        if lost:
            raise UsageError(f"the program of {ref} does not hold {lost[0]!r} as it is (it was folded); {WAY_OUT}")

    def _constants(self) -> dict[str, Array]:
        from onnx import numpy_helper

        return {each.name: numpy_helper.to_array(each) for each in self._model.graph.initializer}

    def with_weights(self, weights: Mapping[str, Array], source: str) -> bytes:
        """The program with these weights; UsageError unless there is one of the same shape for each of its own."""
        from onnx import numpy_helper

        # A copy each time: the program is filled again with every checkpoint.
        fresh = type(self._model)()
        fresh.CopyFrom(self._model)
        for constant in fresh.graph.initializer:
            if constant.name not in self._places:
                continue
            name, turned = self._places[constant.name]
            given = next((weights[each] for each in (name, *sorted(self._tied[name])) if each in weights), None)
            if given is None or given.shape != self._shapes[name]:
                have = "no such weight" if given is None else f"shape {list(given.shape)}"
                raise UsageError(
                    f"{name!r} has shape {list(self._shapes[name])} in {self._ref}, and {source} has {have}; is it "
                    "another architecture?"
                )
            kept = numpy_helper.to_array(constant).dtype
            array = np.ascontiguousarray((given.T if turned else given).astype(kept, copy=False))
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
        return bytes(fresh.SerializeToString())


def find_weights(constants: Mapping[str, Array], weights: Mapping[str, Array]) -> Places:
    """Which constants stand for which weights: by name and value, else by value alone where that leaves no doubt."""
    places: Places = {}
    for name, constant in constants.items():
        if constant.dtype.kind != "f":
            continue
        if name in weights and _equal(constant, weights[name]):
            places[name] = name, False
        elif (found := _by_value(constant, weights)) is not None:
            places[name] = found
    return places


def _by_value(constant: Array, weights: Mapping[str, Array]) -> tuple[str, bool] | None:
    """None also where several weights have these values (biases that are all zero), unless they are tied."""
    fits = [(key, False) for key, each in weights.items() if _equal(constant, each)]
    fits += [(key, True) for key, each in weights.items() if each.ndim == 2 and _equal(constant, each.T)]
    if not fits or len({turned for _, turned in fits}) > 1:
        return None
    return fits[0] if {key for key, _ in fits} <= tied_names(fits[0][0], weights) else None


def tied_names(name: str, weights: Mapping[str, Array]) -> set[str]:
    """The weight and those it is tied to: matrices of the same values that are not all one number."""
    own = weights[name]
    if own.ndim < 2 or own.size < 2 or own.min() == own.max():
        return {name}
    return {key for key, each in weights.items() if _equal(each, own)}


def _equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
