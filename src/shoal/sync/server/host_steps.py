"""Two levels of steps at servers: the workers of a host agree in every step, and hosts as their pace says.

    worker 0 ── change ─┐ memory of the host                                    ┌── values ──> worker 0
    worker 1 ── change ─┴──> the first adds up ── push, pull ──> servers ──> it ┴── values ──> worker 1

To the servers a host is one worker with the batch of all of its own: it has one clock, and what travels between hosts
does not depend on how many workers it has. Between two pulls its workers go on from the mean of their changes. The
first of them speaks; if it is lost, or has no more samples, the next one does. It asks the servers how far they are,
adds up the same changes again, and pushes them by the same clock, so that each counts once.

Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Distributed Systems", 2015
(the two-level KVStore). Do not use it where the workers of a host differ in speed: in every step they wait for the
slowest of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import Quarantined
from shoal.groups.base import WorkerGroup
from shoal.membership.view import MembershipView
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.host_memory import HostMemory, HostPartners
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.shard import MOST_REFUSED
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.server.synchronizer import ServerStepsSynchronizer
from shoal.sync.state import State
from shoal.sync.synchronizer import Part


class HostStepsSynchronizer(ServerStepsSynchronizer):
    """Of one part; `pace.by_host` is true."""

    def __init__(
        self,
        exchange: GradientExchange,
        servers: ServerConnection,
        pace: ServerPace,
        steps: int,
        payloads: ShardPayloads | None = None,
        *,
        group: WorkerGroup,
    ) -> None:
        super().__init__(exchange, servers, pace, steps, payloads)
        self._group = group
        self._spoken = -1
        """The clock after the last step of the host whose values this worker has itself from the servers."""
        self._refused = 0
        """Changes in a row that were not finite."""

    def open(self, part: Part, state: State | None = None) -> None:
        super().open(part, state)
        self._sizes = [p.numel() for p in self._parameters]
        self._memory = HostMemory(self._group, sum(self._sizes))
        self._host = HostPartners(self._group, self._memory, lambda: self._client.round)

    def _follow_view(self) -> None:
        """The speaker tells the servers of views, before it pushes."""
        if self._client.told is not None:
            return
        view, memory = self.part.session.view, self._memory
        # flags of rounds are one above the round's number, because new memory holds zeros
        if self._host.await_speaker(memory.begun, 1) == memory.slot:
            self._client.open_shards(view, self._parameters)
            self._keep(self._anchors)
            self._spoken = self._client.clock
            self._publish_values(self._anchors)
            self._host.publish(memory.begun, self._client.round + 1)
        else:
            self._client.follow_round(view)
            self._take_round_values()
        self._keep(self._starts)

    def _take_round_values(self) -> None:
        """Those that the speaker has; this worker asks for them if it speaks by now."""
        memory, number = self._memory, self._client.round + 1
        slot = self._host.await_speaker(memory.begun, number)
        # the first speaker was lost before it showed the values
        if slot == memory.slot and memory.begun[slot] != number:
            self._ask_anew()
            self._take_values(self._anchors)
            self._publish_values(self._anchors)
            self._host.publish(memory.begun, number)
        else:
            self._take_results(slot)

    def _ask_anew(self) -> None:
        self._client.take_over(self.part.session.newest_view)
        self._spoken = self._client.clock

    def _publish_values(self, values: Sequence[Tensor]) -> None:
        own = self._memory.results(self._memory.slot)
        for piece, value in zip(torch.split(own, self._sizes), values, strict=True):
            piece.copy_(value.reshape(-1))

    def _take_results(self, slot: int) -> None:
        with torch.no_grad():
            pieces = self._shape(self._memory.results(slot))
            for parameter, anchor, piece in zip(self._parameters, self._anchors, pieces, strict=True):
                anchor.copy_(piece)
                parameter.copy_(anchor)

    def _shape(self, flat: Tensor) -> list[Tensor]:
        pieces = zip(torch.split(flat, self._sizes), self._parameters, strict=True)
        return [piece.view(parameter.shape) for piece, parameter in pieces]

    def after_step(self, optimizer: Optimizer) -> None:
        self._open = True
        if optimizer is self.part.optimizers[-1]:
            self._push(self._updates(), self.part.weights.step_share())
            self._count()

    def _updates(self) -> list[Tensor]:
        if self.pace.rule != "add":
            return self._gradients()
        return [p.detach() - anchor for p, anchor in zip(self._parameters, self._anchors, strict=True)]

    def _push(self, updates: list[Tensor], weight: float, since: Sequence[Tensor] = ()) -> None:
        began, memory, number = now(), self._memory, self._client.clock + 1
        self._offer(updates, weight)
        self._host.publish(memory.full, number)
        slot = self._host.await_speaker(memory.done, number)
        if slot == memory.slot and memory.done[slot] != number:
            self._speak(number)
        else:
            self._client.clock, self._client.minimum = number, int(memory.minimum[slot])
        self._take_results(slot)
        self.server_totals.staleness[self._client.staleness] += 1
        self.spent.wait += now() - began

    def _offer(self, updates: list[Tensor], weight: float) -> None:
        """One that is not finite counts for nothing, and costs the others of the host nothing."""
        change = torch.cat([update.reshape(-1) for update in updates]).mul_(weight)
        if bool(torch.isfinite(change).all()):
            self._refused = 0
        else:
            self._refused, weight = self._refused + 1, 0.0
            change.zero_()
            self.server_totals.refused += 1
        self._memory.offer(change, weight)
        if self._refused >= MOST_REFUSED:
            raise Quarantined(
                f"{self.part.session.member} made changes that are not finite three times in a row; lower the learning "
                "rate",
                "not finite",
            )

    def _speak(self, number: int) -> None:
        """Push what the workers of this host have made of their step, and show them the values to go on from."""
        client, memory, newest = self._client, self._memory, self.part.session.newest_view
        stands_in = self._spoken != number - 1
        if stands_in:  # the servers may have this step from a worker that is lost
            self._ask_anew()
            # pushed by the same clock again: a server that has it from the lost worker changes nothing
            client.clock = number - 1
        elif client.told is None or newest.generation > client.told.generation:
            client.tell(newest)
        # what the lost speaker chose it may have pushed already, so the same changes are added up
        slots = memory.find_choice(number) or self._host.await_full(number)
        memory.note_choice(slots, number)
        self._exchange(*memory.add_up(slots), [self._host.names[slot] for slot in slots], stands_in)
        # before the flag: the others read it as soon as they see `done`
        memory.minimum[memory.slot] = client.minimum
        self._spoken = number
        self._host.publish(memory.done, number)

    def _exchange(self, total: Tensor, weight: float, among: list[str], must_pull: bool) -> None:
        # shares are parts of one, or, where losses are sums, one each
        client, mean = self._client, total / min(weight, 1.0) if weight > 0 else total
        client.send_push(self._shape(total if self.pace.rule == "add" else mean), 1.0, [], among)
        pulls = client.send_pulls() if must_pull or self._wants_values() else {}
        outcomes = client.take_outcomes()
        self.server_totals.pushes += 1
        self._judge(outcomes)
        if pulls:
            self._pull(pulls)
        elif PushOutcome.REFUSED not in outcomes:
            with torch.no_grad():
                for anchor, change in zip(self._anchors, self._shape(mean), strict=True):
                    anchor += change
        self._publish_values(self._anchors)

    def leave_round(self) -> None:
        self._follow_view()
        self._host.publish(self._memory.left, self._client.round + 1)
        self._client.leave_round()

    def _begin_round(self, view: MembershipView) -> None:
        memory, client = self._memory, self._client
        speaks = self._host.first_of(view) == memory.slot  # the same for all, because all have left the last round
        client.begin_round(view, values=speaks)
        if speaks:
            self._spoken = client.clock
            self._take_values(self._anchors)
            self._publish_values(self._anchors)
            self._host.publish(memory.begun, client.round + 1)
        else:
            self._take_round_values()
        self._named = 0
        self._keep(self._starts)
