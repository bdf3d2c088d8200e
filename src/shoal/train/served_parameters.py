"""A parameter of the model whose values lie on servers, row by row: a worker keeps a copy and brings rows up to date.

    sparse (nn.Embedding(sparse=True))    rows the batch names are pulled before the layer is called
    dense                                 all rows, when the model is called first in a step
    step                                  the change that the script's optimizer made of these rows is pushed, or their
                                          gradients, where the plan names a rule of the servers

Its gradients are this worker's own, so they are hidden while all workers agree on whether the others are finite.
"""

import numpy as np
import torch
from torch import Tensor, nn

from shoal.sync.server.row_client import RowClient, TableSpec
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard_state import RowNumbers
from shoal.train.forward import StayingHook, add_pre_hook


class ServedParameter:
    """`layers`: embeddings that look rows of it up; none for a dense parameter."""

    client: RowClient | None = None
    gradients_are_scaled = True

    def __init__(
        self, name: str, parameter: Tensor, layers: list[nn.Module], rule: str, settings: dict[str, float]
    ) -> None:
        self.name, self.parameter, self.rule, self.settings = name, parameter, rule, settings
        self._is_sparse, self._is_fresh = bool(layers), False
        self._hidden: Tensor | None = None
        self._rows: RowNumbers = np.zeros(0, np.int64)
        self._before: FloatArray | None = None
        """Of these rows, the values before the optimizer's step, or the gradients that are pushed instead."""
        for layer in layers:
            add_pre_hook(layer, StayingHook(self._called))

    def describe(self) -> TableSpec:
        flat = self._flat()
        return TableSpec(self.name, flat.shape[0], flat.shape[1], self.rule, self.settings)

    def _flat(self) -> Tensor:
        found = self.parameter.detach()
        return found.reshape(found.shape[0], -1) if found.dim() > 1 else found.reshape(1, -1)

    def load_all(self) -> None:
        """Give the servers the values that lie here."""
        assert self.client is not None
        flat = self._flat().cpu().numpy()
        # about a million numbers, 4 MB, at a time
        step = max(1, (1 << 20) // flat.shape[1])
        for at in range(0, len(flat), step):
            part = flat[at : at + step]
            self.client.load(np.arange(at, at + len(part)), [part])

    def _called(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs:
            self._pull(torch.unique(inputs[0].detach()).to("cpu", torch.int64).numpy())

    def before_forward(self) -> None:
        if not self._is_sparse and not self._is_fresh:
            self.refresh()

    def refresh(self) -> None:
        """Bring all of it up to date."""
        rows = np.arange(self._flat().shape[0])
        step = max(1, (1 << 20) // self._flat().shape[1])
        for at in range(0, len(rows), step):
            self._pull(rows[at : at + step])
        self._is_fresh = True

    def _pull(self, rows: RowNumbers) -> None:
        if self.client is None:
            return
        with torch.no_grad():
            values = torch.from_numpy(self.client.pull(rows)).to(self.parameter.device)
            shape = (len(rows), *self.parameter.shape[1:]) if self.parameter.dim() > 1 else self.parameter.shape
            if self.parameter.dim() > 1:
                self.parameter[torch.from_numpy(rows).to(self.parameter.device)] = values.view(shape)
            else:
                self.parameter.copy_(values.view(shape))

    def hide_gradient(self) -> None:
        self._hidden, self.parameter.grad = self.parameter.grad, None

    def before_step(self, skipped: bool) -> None:
        gradient, self._hidden, self._before = self._hidden, None, None
        if skipped or gradient is None:
            self._rows = np.zeros(0, np.int64)
            return
        if gradient.is_sparse:
            # each row once: its change is the difference between before and after the step
            gradient = gradient.coalesce()
            self._rows = gradient.indices()[0].cpu().numpy()
            values = gradient.values()
        else:
            self._rows, values = np.arange(self._flat().shape[0]), gradient.detach()
        if self.rule == "add":
            self.parameter.grad = gradient
            self._before = self._here()
        else:
            self._before = values.reshape(len(self._rows), -1).cpu().numpy()

    def _here(self) -> FloatArray:
        found: FloatArray = self._flat()[torch.from_numpy(self._rows)].cpu().numpy()
        return found

    def take_updates(self) -> tuple[RowNumbers, FloatArray]:
        # other workers push meanwhile, so the next forward pass pulls again
        self._is_fresh = False
        if self._before is None:
            return np.zeros(0, np.int64), np.zeros((0, self._flat().shape[1]), np.float32)
        found = self._here() - self._before if self.rule == "add" else self._before
        self._before = None
        return self._rows, found
