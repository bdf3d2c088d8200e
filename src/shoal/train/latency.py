"""How long the trained model takes to answer for one sample, measured by worker 0 when the script has ended.

Coleman et al., "DAWNBench: An End-to-End Deep Learning Benchmark and Competition", 2017, asks for it beside the time to
an accuracy. Only `shoal bench` asks for it, by $SHOAL_LATENCY: a plain run should end when its script does. Not for a
run that trains several models: which of them is to answer is not known here.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from shoal.core.clock import Deadline, now
from shoal.core.events import LATENCY_VARIABLE, InferenceTimed
from shoal.train.forward import StayingHook, add_pre_hook

WARM, PASSES = 5, 200
SECONDS = 2.0
"""After this no further pass begins, however few there were."""


def latency_from_environment(is_main: bool) -> "InferenceLatency | None":
    """What is to be measured in this worker, if anything."""
    return InferenceLatency() if is_main and os.environ.get(LATENCY_VARIABLE) else None


class InferenceLatency:
    """Keeps one sample of what the script gives its model, and times the model on it in the end."""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._handle: RemovableHandle | None = None
        self._sample: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def watch(self, models: Sequence[nn.Module]) -> None:
        self._models += models
        if models and self._handle is None:
            self._handle = add_pre_hook(models[0], StayingHook(self._keep), with_kwargs=True)

    def _keep(self, _model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._handle is not None and not torch.compiler.is_compiling():
            self._sample = one_sample(args, named)
            self._handle.remove()

    def measure(self) -> InferenceTimed:
        """The times, or why there are none."""
        if len(self._models) != 1:
            return _nothing(f"{len(self._models)} models")
        if self._sample is None:
            return _nothing("the model was never called")
        model, (args, named) = self._models[0], self._sample
        before = model.training
        model.eval()
        try:
            times = _times(model, args, named)
        except Exception as error:  # noqa: BLE001  (whatever it is, the run itself has ended well)
            return _nothing(f"not for one sample: {type(error).__name__}")
        finally:
            model.train(before)
        times.sort()
        middle, worst = times[len(times) // 2], times[math.ceil(0.99 * len(times)) - 1]
        return InferenceTimed(at=time.time(), seconds=middle, p99=worst, passes=len(times))


def one_sample(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first row of every tensor that has as many rows as the first tensor; everything else as it is."""
    tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor) and value.dim()]
    rows = len(tensors[0]) if tensors else 0

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return (value[:1] if value.dim() and len(value) == rows else value).detach().clone()

    return tuple(map(cut, args)), {name: cut(value) for name, value in named.items()}


def _times(model: nn.Module, args: Sequence[Any], named: Mapping[str, Any]) -> list[float]:
    times: list[float] = []
    deadline = Deadline.after(SECONDS)
    with torch.inference_mode():
        for number in range(WARM + PASSES):
            began = now()
            model(*args, **named)
            times.append(now() - began)
            if deadline.expired and number > 0:
                break
    # a slow model may not have come beyond the warm-up in time
    return times[min(WARM, len(times) - 1) :]


def _nothing(why: str) -> InferenceTimed:
    return InferenceTimed(at=time.time(), why=why)
