"""Steps against parameter servers: push after every step, pull within a staleness bound.

    before_step     the first of a view: tell the servers who the members are
    step            the script's optimizer, on values that may be stale; or the servers', by gradients
    after_step      push the change since the last pull ──> clock + 1 ──> pull, if what is here would be too stale
    round           all meet: pushes of all are in, everybody goes on from the same values

    clock             pushes of this worker that count, levelled over all at every round
    staleness         clock - the clock up to which the updates of all members are in the values a step begins with

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013; Dean et al.,
"Large Scale Distributed Deep Networks", NIPS 2012. The change of a step is weighted by the worker's share of the
samples, so p workers move as far as one process with the whole batch. A lost worker's pushes stay: the samples of those
that server 0 has counted are not dealt again. Do not use it where workers are equally fast: `every(1)` is not stale.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import Evicted, Quarantined
from shoal.membership.view import MembershipView
from shoal.sync.averaging import AveragingRound
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.server_pace import ServerPace, ServerTotals, check_served
from shoal.sync.server.shard_client import ShardClient
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, StepAction, Synchronizer
from shoal.sync.trained import TrainedSamples


class ServerStepsSynchronizer(LocalStepsSynchronizer):
    """Of one part. `steps`: from one round to the next."""

    def __init__(
        self,
        exchange: GradientExchange,
        servers: ServerConnection,
        pace: ServerPace,
        steps: int,
        payloads: ShardPayloads | None = None,
    ) -> None:
        """`payloads`: how pushes are written; as they are unless given."""
        super().__init__(exchange, AverageOuter(), steps)
        self.servers, self.pace, self.payloads = servers, pace, payloads or ShardPayloads()
        self.server_totals = ServerTotals()
        self._client = ShardClient(servers, pace, self.payloads)
        self._counted = servers.sent
        """Bytes that totals have."""
        self._named = 0
        """Batches of leased samples that pushes of this round were made of."""
        self._pushed: list[TrainedSamples] = []
        """What the last push was made of."""

    @property
    def compresses(self) -> Literal["changes", "pushed gradients"]:  # type: ignore[override]
        return "changes" if self.pace.rule == "add" else "pushed gradients"

    def count_on(self, before: Synchronizer) -> None:
        if isinstance(before, ServerStepsSynchronizer):
            self.server_totals = before.server_totals
            self.payloads.up, self.payloads.down = before.payloads.up, before.payloads.down

    def open(self, part: Part, state: State | None = None) -> None:
        check_served(part.names, part.parameters, part.optimizers)
        self._names, self._parameters = list(part.names), list(part.parameters)
        # no parameters: those travel through servers, and only statistics and words between workers
        self._rounds = AveragingRound(self.exchange, part, [], self.spent, [], words=3)
        self._client.open(part.session, self._names, self._parameters)
        self._anchors = self.payloads.make_anchors()
        self._keep(self._anchors)
        # what checkpoints read in the middle of a round, when the parameters of workers differ
        self._starts = [p.detach().clone() for p in self._parameters]
        # not `super()`, which would lay out rounds of all parameters
        Synchronizer.open(self, part, state)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        if not self._open or self._client.told is None:
            yield
            return
        own = [parameter.detach().clone() for parameter in self._parameters]
        self._write(self._starts)
        try:
            yield
        finally:
            self._write(own)

    def _write(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.copy_(value)

    def before_step(self, optimizer: Optimizer) -> StepAction:
        self._follow_view()
        return StepAction.LOCAL if self.pace.rule == "add" else StepAction.REMOTE

    def _follow_view(self) -> None:
        """Tell the servers of a view before the first push in it: newcomers count from the round's beginning."""
        view, told = self.part.session.view, self._client.told
        if told is None:
            self._client.open_shards(view, self._parameters)
            self._keep(self._anchors)
            self._keep(self._starts)
        elif view.generation > told.generation:
            self._client.tell(view)

    def _keep(self, tensors: list[Tensor]) -> None:
        for tensor, parameter in zip(tensors, self._parameters, strict=True):
            tensor.copy_(parameter.detach())

    def after_step(self, optimizer: Optimizer) -> None:
        self._open = True
        if optimizer is self.part.optimizers[-1]:
            if self.pace.rule == "add":  # what this step, and the script since the last one, changed
                values = [p.detach() for p in self._parameters]
                self._push(values, self.part.weights.step_share(), self._anchors)
            else:
                self._push(self._gradients(), 1.0)
            self._count()

    def skip_step(self) -> None:
        self._follow_view()
        # expanded zeros have the shapes and take no memory
        self._push([torch.zeros(()).expand(p.shape) for p in self._parameters], 0.0)
        self._count()

    def _gradients(self) -> list[Tensor]:
        empty = torch.zeros(())
        return [empty.expand(p.shape) if p.grad is None else p.grad.to_dense() for p in self._parameters]

    def _push(self, updates: list[Tensor], weight: float, since: Sequence[Tensor] = ()) -> None:
        """`since`: what is pushed is the change from these to `updates`."""
        began = now()
        self._pushed = self.part.weights.leased_from(self._named)
        self._named += len(self._pushed)
        self._client.send_push(updates, weight, self._pushed, since=since)
        self._conclude(self._client.send_pulls() if self._wants_values() else {})
        self.spent.wait += now() - began

    def _conclude(self, pulls: dict[int, int]) -> None:
        """What became of the last push, and the values of the pulls that left with it, if any did."""
        totals, outcomes = self.server_totals, self._client.take_outcomes()
        totals.pushes += 1
        self._judge(outcomes)
        if pulls:
            self._pull(pulls)
        elif PushOutcome.REFUSED in outcomes:
            self._undo_step()
        else:
            self._keep_step()
        totals.staleness[self._client.staleness] += 1

    def _undo_step(self) -> None:
        """Its push was refused, and no values come."""
        self._write(self._anchors)

    def _keep_step(self) -> None:
        """Its push was counted, and no values come."""
        self._keep(self._anchors)

    def _wants_values(self) -> bool:
        """Whether the next step may not begin on what is here."""
        # where servers make the step, new values exist only there
        bound = self.pace.bound
        return self.pace.eager or bound is None or self.pace.rule != "add" or self._client.staleness > bound

    def _judge(self, outcomes: set[PushOutcome]) -> None:
        member = self.part.session.member
        if PushOutcome.QUARANTINED in outcomes:
            raise Quarantined(
                f"{member} pushed numbers that are not finite three times in a row; lower the learning rate",
                "not finite",
            )
        if PushOutcome.LATE in outcomes:
            raise Evicted(f"{member} is no member any more; the others go on without it")
        self.server_totals.refused += PushOutcome.REFUSED in outcomes

    def _pull(self, numbers: dict[int, int]) -> None:
        began = now()
        for member in self._client.take_pulled(numbers):
            self.server_totals.waited[member] += round(1e3 * (now() - began))
        self.server_totals.pulls += 1
        self._take_values(self._anchors)

    def _take_values(self, anchors: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, anchor, flat in zip(self._parameters, anchors, self.payloads.flat, strict=True):
                parameter.copy_(torch.from_numpy(flat).view(parameter.shape))
                # anchors may lie where values arrive, and then have them already
                if anchor.data_ptr() != flat.ctypes.data:
                    anchor.copy_(parameter)

    def leave_round(self) -> None:
        self._follow_view()
        self._client.leave_round()

    def close_round(self) -> None:
        """Meet all others: what all have pushed is in the values that everybody goes on from. A collective call."""
        began, totals = now(), self.totals
        # before waiting for the others, whose pulls may wait for this worker's clock
        self.leave_round()
        tag, made = self.part.weights.tag().number, self._made
        self._rounds.mean([], self.part.weights.round_share(), (1.0, tag, float(tag) ** 2))
        self.formed = self._rounds.view
        # all have met, so every push of the round is in the values
        self._begin_round(self.formed)
        members, numbers, squares = self._rounds.words
        # all numbers are equal if the mean of the squares is the square of the mean
        self.part.weights.rescale(members * squares != numbers * numbers)
        totals.rounds, totals.steps = totals.rounds + 1, totals.steps + made
        sent, self._counted = self.servers.sent - self._counted, self.servers.sent
        totals.sent, totals.wire = totals.sent + sent, totals.wire + sent
        self._made, self._open = 0, False
        totals.seconds += now() - began

    def _begin_round(self, view: MembershipView) -> None:
        self._client.begin_round(view)
        self._named = 0
        self._take_values(self._anchors)
        self._keep(self._starts)

    def steps_kept(self, member: str) -> int:
        return self._client.kept.get(member, 0)

    @property
    def samples_kept(self) -> Mapping[str, Sequence[TrainedSamples]]:
        return self._client.samples_kept

    def state(self) -> State:
        waits = {name: StateTensor(tensor, "sum") for name, tensor in self.payloads.state().items()}
        return {**super().state(), **waits}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.payloads.load_state({name: one.values for name, one in state.items()})
