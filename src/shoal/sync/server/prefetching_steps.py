"""Steps at parameter servers whose pulls travel while the worker does something else.

    after_step         push ──> and, where new values are due, pull ──>; neither is waited for
    (between steps)    the next batch is loaded; values arrive at their landing place, if servers reach it
    before_forward     wait for what has not come yet; the parameters become these values

Where each parameter lies in a push and in the values of a server is worked out once, when the part is opened
(`payloads.py`): what arrives lies there as the model reads it. What the script changes between its step and the next
forward pass stays changed. Staleness is counted and bounded as without: the same pull brings the same values.

Cui et al., "GeePS: Scalable deep learning on distributed GPUs with a GPU-specialized parameter server", EuroSys 2016.
There values are fetched layer by layer, and memory is swapped between CPU and GPU; here a model waits once, before its
first layer. Do not use it where a script reads parameters right after `optimizer.step()`, or
where nothing happens between two steps: then it only costs a copy of the parameters.
"""

import torch
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.synchronizer import ServerStepsSynchronizer
from shoal.sync.state import State
from shoal.sync.synchronizer import Part, StepAction


class PrefetchingStepsSynchronizer(ServerStepsSynchronizer):
    """Of one part."""

    def __init__(
        self,
        exchange: GradientExchange,
        servers: ServerConnection,
        pace: ServerPace,
        steps: int,
        payloads: ShardPayloads | None = None,
    ) -> None:
        super().__init__(exchange, servers, pace, steps, payloads)
        self._pending: dict[int, int] | None = None
        """While a push is under way: the numbers of the pulls that left with it."""

    def open(self, part: Part, state: State | None = None) -> None:
        super().open(part, state)
        # values arrive while these are still what the script's own changes are told from
        self._anchors = [parameter.detach().clone() for parameter in self._parameters]

    def _conclude(self, pulls: dict[int, int]) -> None:
        self._keep(self._anchors)
        self._pending = pulls

    def _adopt(self) -> None:
        """Hear what became of the last push, and go on from the values that were pulled after it, if any were."""
        if self._pending is None:
            return
        began, pulls = now(), self._pending
        self._pending = None
        super()._conclude(pulls)
        self.spent.wait += now() - began

    def _keep_step(self) -> None:
        """What is here was kept when the push left."""

    def _undo_step(self) -> None:
        """The values before the step are not here any more."""
        self._pull(self._client.send_pulls())

    def _pull(self, numbers: dict[int, int]) -> None:
        pairs = list(zip(self._parameters, self._anchors, strict=True))
        # usually the script has changed nothing, and then no difference is stored
        own = [None if torch.equal(p, anchor) else p.detach() - anchor for p, anchor in pairs]
        super()._pull(numbers)
        with torch.no_grad():
            for parameter, change in zip(self._parameters, own, strict=True):
                if change is not None:
                    parameter += change

    def before_forward(self) -> None:
        self._adopt()

    def before_step(self, optimizer: Optimizer) -> StepAction:
        self._adopt()  # a step without a forward pass before it
        return super().before_step(optimizer)

    def skip_step(self) -> None:
        self._adopt()
        super().skip_step()

    def leave_round(self) -> None:
        self._adopt()
        super().leave_round()
