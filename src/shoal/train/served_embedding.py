"""An embedding whose table lies on the run's servers: a worker holds the rows of its batch, and no others.

    table = shoal.ServedEmbedding(20_000_000, 128, rate=0.05)     in the place of nn.Embedding
    forward     the rows that the batch names are pulled; their gradients are kept
    step        one push of these gradients; the rule at the servers changes the rows

Alone under `python` the table lies in this process, and memory is taken page by page as rows are used.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; Trask et al., "Modeling order
in neural word embeddings at scale", ICML 2015, for how large such tables become. Do not use it for a table that fits
beside the model: `nn.Embedding(sparse=True)` does not wait for servers.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import UsageError
from shoal.sync.server.row_client import RowClient, TableSpec
from shoal.sync.server.row_shard import add_rows
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.rules.table import make_rule
from shoal.sync.server.shard_state import RowNumbers

RULES = ("sgd", "adagrad")
MOST_ROWS, MOST_WIDTH = 1 << 40, 1 << 24


class ServedEmbedding(nn.Module):
    """Looks up rows of a table, as `nn.Embedding` does.

    `rule`: what servers make of a gradient, `sgd` or `adagrad`, with the learning rate `rate`: the script's optimizers
    do not see this table. Rows begin with normal numbers of standard deviation `scale`, drawn from `seed`.
    """

    client: RowClient | None = None
    gradients_are_scaled = False

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rate: float,
        rule: str = "adagrad",
        seed: int = 0,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value, most in (
            ("num_embeddings", num_embeddings, MOST_ROWS),
            ("embedding_dim", embedding_dim, MOST_WIDTH),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"ServedEmbedding({name}={value}): give a whole number from 1 to {most}")
        if rule not in RULES:
            raise UsageError(f"ServedEmbedding(rule={rule!r}): servers know {', '.join(RULES)}; use one of them")
        if not 0 < rate <= 1e3:
            raise UsageError(f"ServedEmbedding(rate={rate}): the learning rate must be above 0 and at most 1000")
        if not 0 <= scale <= 1e6 or not 0 <= seed < 2**53:
            raise UsageError(
                f"ServedEmbedding(seed={seed}, scale={scale}): give a seed of 0 or more and 0 <= scale <= 1e6"
            )
        # raises here what the servers would raise later
        make_rule(rule, rate=rate)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.rule, self.rate, self.seed, self.scale = rule, rate, seed, scale
        self._used: list[tuple[RowNumbers, FloatArray]] = []
        """Rows of backward passes since the last step, and their gradients."""

    def describe(self, name: str) -> TableSpec:
        """What the servers keep for it."""
        size = (self.num_embeddings, self.embedding_dim)
        return TableSpec(name, *size, self.rule, {"rate": self.rate}, self.seed, self.scale)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        if self.client is None:
            raise UsageError(
                "a ServedEmbedding is used before its table is there; call run.join(model, optimizer) first"
            )
        # a row travels once, however often the batch names it
        rows, places = torch.unique(input.detach(), return_inverse=True)
        numbers = rows.to("cpu", torch.int64).numpy()
        values = torch.from_numpy(self.client.pull(numbers)).to(input.device)
        if torch.is_grad_enabled():
            values.requires_grad_()
            values.register_hook(partial(self._keep, numbers))  # type: ignore[no-untyped-call]
        return nn.functional.embedding(places, values)

    def _keep(self, rows: RowNumbers, gradient: Tensor) -> None:
        self._used.append((rows, gradient.detach().to("cpu", torch.float32).numpy()))

    def before_forward(self) -> None:
        """Rows are pulled by the forward pass, which knows them."""

    def hide_gradient(self) -> None:
        """No optimizer sees it."""

    def before_step(self, skipped: bool) -> None:
        if skipped:
            self._used.clear()

    def take_updates(self) -> tuple[RowNumbers, FloatArray]:
        parts, self._used = self._used, []
        if not parts:
            return np.zeros(0, np.int64), np.zeros((0, self.embedding_dim), np.float32)
        return add_rows(parts)

    def refresh(self) -> None:
        """Nothing of it lies here."""

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, rule={self.rule!r}, rate={self.rate}"

    def __deepcopy__(self, memo: dict[int, Any]) -> "ServedEmbedding":
        raise UsageError("a ServedEmbedding cannot be copied: its rows lie on servers; copy the other layers")
