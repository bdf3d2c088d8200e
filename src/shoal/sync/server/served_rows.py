"""The part of a model whose values lie on servers, beside any synchronizer of the rest.

    forward        a user of rows pulls those its batch needs
    after_step     one push of each table: what the step makes of the rows it has used, by the worker's share of samples
    skip_step      an empty push: the clock goes on, so nobody waits for this worker

All members commit a step of the rest before its rows are pushed: a step that is repeated or skipped pushes nothing, and
samples that are dealt again were never pushed. A worker that is killed between the two loses that one push.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.sync.server.row_client import RowClient
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard_state import RowNumbers
from shoal.sync.state import State
from shoal.sync.synchronizer import Part, StepAction, Synchronizer


class RowUser(Protocol):
    """Something of a model that uses the rows of one table."""

    client: RowClient | None
    gradients_are_scaled: bool
    """Whether its gradients came by the hooks of the backward pass, which scale by the worker's samples."""

    def hide_gradient(self) -> None:
        """Take the gradient away, which is this worker's own, until `before_step`."""

    def before_forward(self) -> None:
        """The model is called: bring what it reads up to date."""

    def before_step(self, skipped: bool) -> None:
        """The optimizer steps next. `skipped`: its gradients were taken away."""

    def take_updates(self) -> tuple[RowNumbers, FloatArray]:
        """Return the rows that were used since the last step, once each, and what is pushed of them."""

    def refresh(self) -> None:
        """Bring everything up to date that lies here for others to read."""


class ServedRowsSynchronizer(Synchronizer):
    """Of all tables of one join."""

    def __init__(self, users: Sequence[RowUser]) -> None:
        super().__init__()
        self.users = users

    def open(self, part: Part, state: State | None = None) -> None:
        if not part.optimizers:
            raise UsageError(
                "rows on servers are pushed after an optimizer's step, and join() got none; give it one too"
            )
        super().open(part, state)

    @property
    def clients(self) -> list[RowClient]:
        return [user.client for user in self.users if user.client is not None]

    def before_forward(self) -> None:
        for user in self.users:
            user.before_forward()

    @contextmanager
    def preparing(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, all workers agree whether the rest makes this step: gradients that differ between them are hidden."""
        for user in self.users:
            user.hide_gradient()
        # gradients that are gone afterwards were taken away because all skip the step
        there = _has_gradients(optimizer)
        yield
        for user in self.users:
            user.before_step(skipped=there and not _has_gradients(optimizer))

    def before_step(self, optimizer: Optimizer) -> StepAction:
        with self.preparing(optimizer):
            pass
        return StepAction.LOCAL

    def after_step(self, optimizer: Optimizer) -> None:
        if optimizer is self.part.optimizers[-1]:
            weights = self.part.weights
            self._push(weights.step_share(), weights.weight())

    def skip_step(self) -> None:
        self._push(0.0, 0.0)

    @property
    def bytes_sent(self) -> int:
        """Rows that were named in pulls, and rows and values of pushes."""
        return sum(8 * each.rows_pulled + each.spec.row_bytes * each.rows_pushed for each in self.clients)

    def _push(self, share: float, weight: float) -> None:
        """`share`: of the samples of a step; `weight`: what is left of it where gradients are scaled."""
        began = now()
        for user in self.users:
            if user.client is not None:
                user.client.push(*user.take_updates(), weight if user.gradients_are_scaled else share)
        self.spent.wait += now() - began

    def refresh(self) -> None:
        """Bring copies up to date, for others to read."""
        for user in self.users:
            user.refresh()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
