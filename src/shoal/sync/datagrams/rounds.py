"""Workers step without waiting, and send what they have changed as datagrams: Hogwild over a network (Dogwild!).

    before_step     the first of a round: all come, remember the parameters, tell each other ports and keys
    after_step      offer the sum of this worker's changes; add to the parameters what has come of others meanwhile
    meeting         after `steps` steps, and when a pass ends: parameters = start + the changes of all, over the plan's
                    exchange, which loses nothing; so replicas are equal, whatever the network has dropped

Noel & Osindero, "Dogwild! Distributed Hogwild for CPU & GPU", NIPS workshop on distributed machine learning and matrix
computations, 2014. Between meetings replicas differ by what is on its way; samples are committed, checkpoints taken and
newcomers let in at a meeting. A worker that is lost takes along everything since the last one, also from the others,
so that its samples can be dealt again.

Do not use it where an all-reduce keeps up with the steps; with large dense models, whose blocks take many steps to go
round; nor with learning rates at which the sum of p workers' steps, some steps old, would be too much.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import PayloadError, UsageError
from shoal.groups.base import WorkerGroup
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.sync.datagrams.best_effort import BestEffortExchange, DatagramCounts, DatagramPeer
from shoal.sync.datagrams.differences import DifferenceBlocks
from shoal.sync.datagrams.thread import DatagramThread, open_socket
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.round_totals import RoundInFlight
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.state import State
from shoal.sync.synchronizer import Part, StepAction, Synchronizer
from shoal.transport.datagram_seal import PUBLIC_BYTES, DatagramKeyPair
from shoal.transport.rate_limit import RateLimit

COUNTED = 4
"""The word that counts those whose changes count."""
AT_ONCE = 16 << 10
"""Bytes that may leave in one burst."""


class DatagramPort(msgspec.Struct, array_like=True, frozen=True):
    """Where a member receives, and its half of the keys. The address is that of its links."""

    port: int
    public: bytes


class DatagramRoundsSynchronizer(LocalStepsSynchronizer):
    """Of one part. `steps`: of each worker from one meeting to the next; `rate`: bytes a second it may send."""

    MORE_WORDS = 1

    def __init__(self, exchange: GradientExchange, group: WorkerGroup, steps: int, rate: float) -> None:
        super().__init__(exchange, AverageOuter(), steps)
        self.group, self.counts = group, DatagramCounts()
        self._rate = RateLimit(rate, AT_ONCE)
        self._blocks: DifferenceBlocks | None = None
        """Of the round under way; None between two."""
        self._thread: DatagramThread | None = None
        self._best_effort: BestEffortExchange | None = None

    def open(self, part: Part, state: State | None = None) -> None:
        super().open(part, state)
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
                raise UsageError(
                    f"datagrams carry float32 from the host's memory, and {name} is {parameter.dtype} on "
                    f"{parameter.device}; write allreduce, local(16)"
                )
        self._size = sum(p.numel() for p in self._parameters)

    def before_step(self, optimizer: Optimizer) -> StepAction:
        if self._blocks is None:
            self._begin_round()
        return StepAction.LOCAL

    def _begin_round(self) -> None:
        """All come here, in the first step of a round."""
        self._anchor.remember()
        # kept apart from own changes, which alone are offered to others
        self._others = torch.zeros(self._size)
        hosts, own = self.group.datagram_hosts(), self.part.session.member
        # anew in each round, so that nothing of an earlier one can be taken for one of this
        sock, keys = open_socket(hosts[own]), DatagramKeyPair()
        try:
            told = self._tell(sock, keys)
            members = [member for member in told if member != own]
            self._blocks = DifferenceBlocks(self._size, members)
            peers = {m: DatagramPeer(slot_of(m), keys.seal_with(told[m].public)) for m in members}
            self._best_effort = BestEffortExchange(slot_of(own), peers, self._blocks, self._rate, self.counts)
            hosts = self.group.datagram_hosts()  # of those that have come
            self._thread = DatagramThread(sock, self._best_effort, {m: (hosts[m], told[m].port) for m in members})
        except BaseException:
            sock.close()
            raise
        self._thread.start()

    def _tell(self, sock: socket.socket, keys: DatagramKeyPair) -> dict[str, DatagramPort]:
        own = DatagramPort(sock.getsockname()[1], keys.public)
        said = self.group.gather(msgspec.json.encode(own), check=read_port)
        return dict(zip(self.part.session.committed_view.members, map(read_port, said), strict=True))

    def _count(self) -> None:
        if self._blocks is None:  # this worker has no sample in the first step of a round
            self._begin_round()
        self._offer()
        self._take_in()
        super()._count()

    def _offer(self) -> None:
        """Own changes: what the parameters are above the start and what came of others."""
        assert self._blocks is not None
        with torch.no_grad():
            flat = torch.cat([(p - a).reshape(-1) for p, a in zip(self._parameters, self._anchor.values, strict=True)])
            self._blocks.offer(flat.sub_(self._others).numpy())

    def _take_in(self) -> None:
        assert self._blocks is not None
        if (found := self._blocks.take()) is None:
            return
        arrived = torch.from_numpy(found)
        self._others += arrived
        with torch.no_grad():
            for parameter, part in self._cut_flat(arrived):
                parameter.add_(part)

    def _cut_flat(self, flat: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        parts = torch.split(flat, [p.numel() for p in self._parameters])
        return [(p, part.view_as(p)) for p, part in zip(self._parameters, parts, strict=True)]

    def close_round(self) -> None:
        if self._blocks is None:
            self._begin_round()
        self._leave_round()
        super().close_round()

    def _leave_round(self) -> None:
        """Take back what came of others, which they offer again: without losses, and all at once."""
        assert self._thread is not None
        self._thread.stop()
        with torch.no_grad():
            for parameter, part in self._cut_flat(self._others):
                parameter.sub_(part)
        self._blocks = self._thread = self._best_effort = None

    def _weigh(self, places: object) -> tuple[int, float]:
        """All alike: every change counts once, whatever samples it was made of."""
        return self.part.weights.tag().number, 1.0 / len(self.part.session.view)

    def _more_words(self, changes: object, own: float) -> tuple[float]:
        return (float(own > 0),)

    def _take(self, means: Sequence[Tensor | None], flight: RoundInFlight) -> None:
        """The sum of all changes, not their mean."""
        # a remote worker may add anything to the sum of words
        counted = min(max(self._rounds.words[COUNTED], 0.0), float(len(self._rounds.view)))
        super()._take([mean * counted if mean is not None else None for mean in means], flight)

    def datagram_counts(self) -> Mapping[str, int]:
        return asdict(self.counts)

    def count_on(self, before: Synchronizer) -> None:
        if isinstance(before, DatagramRoundsSynchronizer):
            self.counts = before.counts

    def on_view_change(self, old: MembershipView, new: MembershipView) -> None:
        if self._best_effort is not None:
            for member in old.members:
                if member not in new:
                    self._best_effort.forget(member)


def read_port(data: bytes) -> DatagramPort:
    """What a member tells of itself; PayloadError for what no member has."""
    try:
        found = msgspec.json.decode(data, type=DatagramPort)
    except msgspec.MsgspecError as error:
        raise PayloadError(f"a port for datagrams: {error}") from None
    if not 1 <= found.port < 1 << 16 or len(found.public) != PUBLIC_BYTES:
        raise PayloadError(f"port {found.port} with a key of {len(found.public)} bytes is no place for datagrams")
    return found
