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

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import Evicted, PayloadError, Quarantined, UsageError
from shoal.membership.view import MembershipView
from shoal.sync.averaging import AveragingRound
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.messages import (
    LeaveRoundRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    ShardReply,
    StepDeadline,
    ValuesHead,
    read_outcome,
)
from shoal.sync.server.payloads import PackedPush, ShardPayloads
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, StepAction, Synchronizer
from shoal.sync.trained import TrainedSamples, check_trained

RoundMessage = RoundRequest | LeaveRoundRequest


@dataclass(frozen=True)
class ServerPace:
    """What a plan says of the servers' shards and of how often values are pulled."""

    bound: int | None
    """Steps a worker may be ahead of the slowest; None: any number."""
    rule: str = "add"
    settings: dict[str, float] = field(default_factory=dict)
    eager: bool = False
    """Whether values are pulled after every step, however fresh those here are."""
    adaptive: bool = False
    """Whether a push counts the less the staler it is."""
    prefetch: bool = False
    """Whether values are waited for only when the next step needs them (`prefetching_steps.py`)."""
    speculate: float = 0.0
    """Without a bound: a step begins again when so many updates of each other worker have come; 0: it never does
    (`speculative_steps.py`)."""
    deadline: StepDeadline | None = None
    """With bound 0: steps are taken without the slowest (`deadline_steps.py`)."""


@dataclass
class ServerTotals:
    """Of all steps so far, on one worker."""

    pushes: int = 0
    refused: int = 0
    """Pushes that were not finite."""
    late: int = 0
    """Pushes whose step had been taken without them."""
    unused: int = 0
    """Leased samples of those that count for nothing."""
    restarts: int = 0
    """Forward passes that were made again on fresher values."""
    gained: int = 0
    """Updates of others that these values had more."""
    pulls: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Clocks that the slowest member was behind -> steps that began with such values."""
    waited: Counter[str] = field(default_factory=Counter)
    """Member -> milliseconds that pulls have waited for it."""


def check_served(names: Sequence[str], parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """UsageError if servers cannot keep these parameters, or if nothing says when a step is made."""
    if not optimizers:
        raise UsageError("stale(…) and async push after an optimizer's step, and join() got none; give it one too")
    odd = next((n for n, p in zip(names, parameters, strict=True) if p.dtype != torch.float32), None)
    if odd is not None:
        raise UsageError(f"parameter {odd!r} is not of float32, which is all that servers keep; write every(1)")


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
        self._counted = servers.sent
        """Bytes that totals have."""
        self._kept: dict[str, int] = {}
        """Of members that were lost in the last round: how many of their pushes count."""
        self._samples_kept: dict[str, list[TrainedSamples]] = {}
        """The leased samples of those pushes."""
        self._named = 0
        """Batches of leased samples that pushes of this round were made of."""
        self._versions = [0] * len(servers)
        """Of each server: updates in the values held here, and this worker's own since."""
        self._channel = servers.take_channel()
        self._told: MembershipView | None = None
        """The newest view that the servers were told of by this worker."""
        self._round = self._clock = self._minimum = 0

    def count_on(self, before: "ServerStepsSynchronizer") -> None:
        """Go on with the totals of an earlier plan."""
        self.server_totals = before.server_totals
        self.payloads.up, self.payloads.down = before.payloads.up, before.payloads.down

    def open(self, part: Part, state: State | None = None) -> None:
        check_served(part.names, part.parameters, part.optimizers)
        self._names, self._parameters = list(part.names), list(part.parameters)
        self._rounds = AveragingRound(self.exchange, part, [], self.spent, [], words=3)
        self.payloads.open(self._names, self._parameters, len(self.servers), self.servers.allocate)
        self.servers.declare(self._channel, self.payloads.declare())
        self._anchors = self.payloads.make_anchors()
        self._keep(self._anchors)
        self._starts = [p.detach().clone() for p in self._parameters]
        Synchronizer.open(self, part, state)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        if not self._open or self._told is None:
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
        view = self.part.session.view
        if self._told is None:
            self._open_shards(view)
        elif view.generation > self._told.generation:
            self._tell(view)

    def _open_shards(self, view: MembershipView) -> None:
        """The values of all workers are equal here, so any worker's may be the shard's first."""
        facts = (self._channel, self.pace.rule, self.pace.settings, self.pace.bound, view.generation)
        values = self.payloads.copy_values([p.detach() for p in self._parameters])
        numbers = {}
        request = OpenRequest(*facts, list(view.members), self.pace.deadline)
        for server in self._from_last():
            numbers[server] = self.servers.send(server, request, values[server], self.payloads.landings[server])
        for server, (reply, arrays) in enumerate(self._replies(numbers, RoundReply)):
            assert isinstance(reply, RoundReply)
            self._versions[server] = reply.version
            self.payloads.take_all(server, reply.version, arrays)
            self._round, self._clock, self._minimum = reply.round, reply.clock, reply.clock
        self._told = view
        self._keep(self._anchors)
        self._keep(self._starts)

    def _tell(self, view: MembershipView) -> None:
        """Name the members of the newest view; nobody waits for one that is not among them."""
        request = RoundRequest(self._channel, self._round, view.generation, list(view.members))
        self._told = view
        for number in self._send_all(request).values():
            self.servers.forget(number)

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
        self._push([torch.zeros(()).expand(p.shape) for p in self._parameters], 0.0)
        self._count()

    def _gradients(self) -> list[Tensor]:
        empty = torch.zeros(())
        return [empty.expand(p.shape) if p.grad is None else p.grad.to_dense() for p in self._parameters]

    def _push(self, updates: list[Tensor], weight: float, since: Sequence[Tensor] = ()) -> None:
        began = now()
        packed = self.payloads.pack(updates, weight, since)
        trained = self.part.weights.leased_from(self._named)
        self._named += len(trained)
        pushes = {
            server: self.servers.send(
                server, self._push_request(server, packed[server], trained), packed[server].arrays
            )
            for server in self._from_last()
        }
        self._clock += 1
        bound = self.pace.bound
        pulls = {}
        if self.pace.eager or bound is None or self.pace.rule != "add" or self._clock - self._minimum > bound:
            pulls = self._send_pulls()
        self._conclude(pushes, pulls)
        self.spent.wait += now() - began

    def _conclude(self, pushes: dict[int, int], pulls: dict[int, int]) -> None:
        """What became of a push, and the values of the pull that left with it, if one did."""
        totals = self.server_totals
        found = [self._outcome(server, reply) for server, (reply, _) in enumerate(self._replies(pushes, PushReply))]
        self._versions = [v + (o is PushOutcome.APPLIED) for v, o in zip(self._versions, found, strict=True)]
        outcomes = set(found)
        totals.pushes += 1
        self._judge(outcomes)
        if pulls:
            self._pull(pulls)
        elif PushOutcome.REFUSED in outcomes:
            self._undo_step()
        else:
            self._keep_step()
        totals.staleness[self._clock - self._minimum] += 1

    def _undo_step(self) -> None:
        """Its push was refused, and no values come."""
        self._write(self._anchors)

    def _keep_step(self) -> None:
        """Its push was counted, and no values come."""
        self._keep(self._anchors)

    def _send_pulls(self) -> dict[int, int]:
        """Return the number of the request at each server."""
        numbers = {}
        for server in self._from_last():
            request = PullRequest(self._clock, self._channel, self.payloads.held(server))
            numbers[server] = self.servers.send(server, request, landing=self.payloads.landings[server])
        return numbers

    def _push_request(self, server: int, push: PackedPush, trained: list[TrainedSamples]) -> PushRequest:
        version = self._versions[server] if self.pace.adaptive else None
        return PushRequest(self._clock, push.weight, self._channel, trained, version, push.is_finite)

    def _outcome(self, server: int, reply: ShardReply) -> PushOutcome:
        assert isinstance(reply, PushReply)
        return read_outcome(reply, f"server {server}")

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
        began, minima = now(), []
        for server, (reply, arrays) in enumerate(self._replies(numbers, ValuesHead)):
            assert isinstance(reply, ValuesHead)
            minima.append(reply.minimum)
            self._versions[server] = reply.version
            self.payloads.take(server, reply, arrays)
        for member in {each for number in numbers.values() for each in self.servers.take_slowest(number)}:
            self.server_totals.waited[member] += round(1e3 * (now() - began))
        self._minimum = min(minima)
        self.server_totals.pulls += 1
        self._take_values(self._anchors)

    def leave_round(self) -> None:
        """Nobody waits for this worker's clock any more."""
        self._follow_view()
        for number in self._send_all(LeaveRoundRequest(self._channel)).values():
            self.servers.forget(number)

    def close_round(self) -> None:
        """Meet all others: what all have pushed is in the values that everybody goes on from. A collective call."""
        began, totals = now(), self.totals
        self.leave_round()
        tag, made = self.part.weights.tag().number, self._made
        self._rounds.mean([], self.part.weights.round_share(), (1.0, tag, float(tag) ** 2))
        self.formed = self._rounds.view
        self._begin_round(self.formed)
        members, numbers, squares = self._rounds.words
        # all numbers are equal if the mean of the squares is the square of the mean
        self.part.weights.rescale(members * squares != numbers * numbers)
        totals.rounds, totals.steps = totals.rounds + 1, totals.steps + made
        sent, self._counted = self.servers.sent - self._counted, self.servers.sent
        totals.sent, totals.wire = totals.sent + sent, totals.wire + sent
        self._made, self._open = 0, False
        totals.seconds += now() - began

    def steps_kept(self, member: str) -> int:
        return self._kept.get(member, 0)

    @property
    def samples_kept(self) -> Mapping[str, Sequence[TrainedSamples]]:
        return self._samples_kept

    def _begin_round(self, view: MembershipView) -> None:
        request = RoundRequest(self._channel, self._round + 1, view.generation, list(view.members))
        numbers = self._send_all(request, self.payloads.landings)
        for server, (reply, arrays) in enumerate(self._replies(numbers, RoundReply)):
            assert isinstance(reply, RoundReply)
            if server == 0:  # the home of the samples: what it has counted is trained on
                self._kept, self._samples_kept = reply.counted, reply.trained
                for trained in reply.trained.values():
                    check_trained(trained)
            self._round, self._clock, self._minimum = reply.round, reply.clock, reply.clock
            self._versions[server] = reply.version
            self.payloads.take_all(server, reply.version, arrays)
        if self._told is None or view.generation > self._told.generation:
            self._told = view
        self._named = 0
        self._take_values(self._anchors)
        self._keep(self._starts)

    def state(self) -> State:
        waits = {name: StateTensor(tensor, "sum") for name, tensor in self.payloads.state().items()}
        return {**super().state(), **waits}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.payloads.load_state({name: one.values for name, one in state.items()})

    def _from_last(self) -> Iterator[int]:
        """Server 0 comes last, because its word counts."""
        return reversed(range(len(self.servers)))

    def _send_all(self, request: RoundMessage, landings: Sequence[FloatArray] = ()) -> dict[int, int]:
        """Return the number of the request at each server."""
        places = dict(enumerate(landings))
        return {server: self.servers.send(server, request, (), places.get(server)) for server in self._from_last()}

    def _replies(self, numbers: dict[int, int], kind: type) -> Iterator[tuple[ShardReply, list[memoryview]]]:
        for server in range(len(self.servers)):
            reply, arrays = self.servers.wait(server, numbers[server], self._look)
            if not isinstance(reply, kind):
                raise PayloadError(f"server {server} answers with {type(reply).__name__} instead of {kind.__name__}")
            yield reply, arrays

    def _look(self) -> None:
        """In a wait: a member that is lost meanwhile is not waited for."""
        newest = self.part.session.newest_view
        is_newer = self._told is not None and newest.generation > self._told.generation
        if is_newer and self.part.session.member in newest:
            self._tell(newest)

    def _take_values(self, anchors: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, anchor, flat in zip(self._parameters, anchors, self.payloads.flat, strict=True):
                parameter.copy_(torch.from_numpy(flat).view(parameter.shape))
                if anchor.data_ptr() != flat.ctypes.data:
                    anchor.copy_(parameter)
