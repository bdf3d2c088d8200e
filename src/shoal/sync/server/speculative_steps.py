"""Asynchronous steps that begin again where others have just pushed: speculative synchronization.

    before_forward     ask the servers to say when so many updates of others have come since the last pull
    forward_ended      they have come ──> pull, and the forward pass is made again with the same samples, on these
                       they have not  ──> go on; what comes later is pulled after the step, as always

Zhang, Tian, Wang and Yan, "Stay Fresh: Speculative Synchronization for Fast Distributed Machine Learning", ICDCS 2018.
There a step is aborted at a moment that is tuned; here that moment is the end of the forward pass, the only one at
which a script can be made to begin again without noticing. No gradient exists by then, so a batch is trained once, and
its samples count as in any other step. Only the first forward pass after a step can begin again, and not that of the
first step of a round, whose values are those of all. Do not use it where staleness costs little: each restart costs a
forward pass.
"""

import math

import torch
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.messages import WatchRequest
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.synchronizer import ServerStepsSynchronizer


class SpeculativeStepsSynchronizer(ServerStepsSynchronizer):
    """Of one part."""

    restarts_forwards = True

    def __init__(
        self,
        exchange: GradientExchange,
        servers: ServerConnection,
        pace: ServerPace,
        steps: int,
        payloads: ShardPayloads | None = None,
    ) -> None:
        super().__init__(exchange, servers, pace, steps, payloads)
        self._watches: dict[int, int] = {}
        """Number of the request at each server that may still begin this step again."""
        self._may_restart = False
        """Whether no forward pass of this step has begun yet."""

    def before_forward(self) -> None:
        self._forget_watches()
        # evaluations train nothing, and a round begins with the newest values anyway
        if not (self._may_restart and self._open and torch.is_grad_enabled()):
            return
        self._may_restart = False
        for server, version in enumerate(self._client.versions):
            self._watches[server] = self.servers.send(
                server, WatchRequest(version + self._enough, self._client.channel)
            )

    @property
    def _enough(self) -> int:
        """Updates of others after which a step begins again."""
        others = len(self.part.session.view) - 1
        return max(1, math.ceil(self.pace.speculate * others))

    def _forget_watches(self) -> None:
        for number in self._watches.values():
            self.servers.forget(number)
        self._watches = {}

    def forward_ended(self) -> bool:
        watches = dict(self._watches)
        for server in watches:
            self.servers.poll(server)
        has_come = bool(watches) and all(self.servers.is_here(number) for number in watches.values())
        self._forget_watches()
        if has_come:
            self._refresh()
        return has_come

    def _refresh(self) -> None:
        """Pull; what the script has changed since its step stays changed."""
        client = self._client
        began, stale, versions = now(), client.staleness, list(client.versions)
        own = [p.detach() - anchor for p, anchor in zip(self._parameters, self._anchors, strict=True)]
        self._pull(client.send_pulls())
        with torch.no_grad():
            for parameter, change in zip(self._parameters, own, strict=True):
                parameter += change
        totals = self.server_totals
        totals.restarts += 1
        totals.gained += min(new - old for new, old in zip(client.versions, versions, strict=True))
        # the step was counted with the values that it does not use now
        totals.staleness[stale] -= 1
        totals.staleness[client.staleness] += 1
        # drops counts that came to 0
        totals.staleness = +totals.staleness
        self.spent.wait += now() - began

    def after_step(self, optimizer: Optimizer) -> None:
        super().after_step(optimizer)
        self._may_restart = True

    def skip_step(self) -> None:
        super().skip_step()
        self._may_restart = True

    def close_round(self) -> None:
        self._forget_watches()
        super().close_round()
