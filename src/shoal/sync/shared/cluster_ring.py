"""A copy of the parameters for each cluster of workers, and a token that goes round the copies (HogWild++).

    workers 0 1 ──steps──> copy 0 ──┐  whose cluster has the token:  Δ = copy - known            its own changes
    workers 2 3 ──steps──> copy 1 <─┘                                copy = known of the holder before + Δ
                                                                     known = copy, and the token goes on
    all meet                           value = known of the last holder + the Δ of all ──> every copy

Zhang, Hsieh & Akella, "HogWild++: A New Mechanism for Decentralized Asynchronous Stochastic Gradient Descent", ICDM
2016. Workers write into the copy of their cluster alone, so the cache lines of a model stay with the cores of one
socket. Passing on is a pass over all parameters; one worker of a cluster does it after its own steps, and none waits.

**The weights.** The paper adds βΔ to the next copy, and its own becomes λ next + (1 - λ) copy + (β + λ - 1) Δ with
βⁿ + β = 1 and λ = 1 - βⁿ⁻¹ for n clusters (in its published code). What one step finally adds to all copies then
depends on where the token was: with two clusters 1 at its holder and 1.24 at the other, with eight 0.60 and 0.70. That
changes the learning rate. To add 1 everywhere, a quantity L = Σ aᵢ copyᵢ + Σ bᵢ knownᵢ has to stay what it is when the
token is passed on, with aᵢ = 1 and Σ bᵢ = 1 - n (equal copies with value c: L = c). As the live copy of the next enters
with λ, its a would have to grow by a share of λ: with live copies no λ > 0 keeps L. With what the neighbour *knew* in
its place, own = (1 - λ) copy + λ known + γ Δ, there is one β for each λ and γ: β = 1 - (1 - λ + γ) / (n - λ). For the
paper's γ = β + λ - 1 and n = 2, λ = 1 - β that is its 0.618; but copies then agree ever more slowly as n grows. λ = γ =
1 and the holder before as the neighbour is the member of that family with β = 0: nobody writes into another's copy, L =
known of the last holder + Σ Δ, and copies that rest are equal after two rounds of the token, whatever n is.

The token stays where it is when the worker that would pass it on is lost, until all meet; nothing is lost by that, as L
has the changes of all. If it was killed while it passed a tensor on, what its cluster changed in that one since the
token was there before may be lost. Each cluster has an optimizer's state of its own.

Do not use it on a host with one socket: one copy is always up to date, and as fast.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.groups.host_workers import CopyHost
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.sync.engine.slot_flags import LINE, Flags
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.shared.lock_free import LockFreeSynchronizer
from shoal.sync.shared.parameter_copy import SharedParameters, SharedTensors
from shoal.sync.synchronizer import Part

NOBODY = -1
HOLDER, LAST, PASSING, AGREED = range(4)
"""Words of a ring: the cluster that has the token, the one that had it before, the tensor (from 1) that is being passed
on, and whether the agreed values are complete."""


class TokenRing:
    """The copies of all clusters and what each knew when it last had the token. One process at a time passes it on."""

    def __init__(
        self,
        copies: Sequence[Sequence[Tensor]],
        known: Sequence[Sequence[Tensor]],
        agreed: Sequence[Tensor],
        words: Flags,
    ) -> None:
        self.copies, self.known, self.agreed, self._words = copies, known, agreed, words

    def begin(self) -> None:
        """A round begins, and nobody steps yet; all workers may call it."""
        self._words[:4] = NOBODY, NOBODY, 0, 0

    def holder(self, clusters: Sequence[int]) -> int:
        """Return the cluster that has the token; `clusters`: those with workers, in the order of the ring."""
        found = int(self._words[HOLDER])
        return clusters[0] if found == NOBODY else found

    @torch.no_grad()
    def pass_on(self, clusters: Sequence[int]) -> None:
        """Let the holder's copy take in what the others have changed; others write into that copy meanwhile."""
        own = self.holder(clusters)
        last = own if self._words[LAST] == NOBODY else int(self._words[LAST])
        for place, (copy, known) in enumerate(zip(self.copies[own], self.known[own], strict=True)):
            self._words[PASSING] = place + 1
            now = copy.clone()
            move = self.known[last][place] - known
            copy.add_(move)  # not a plain write, which would undo the steps made since `now` was read
            torch.add(now, move, out=known)
        self._words[LAST] = own
        self._words[PASSING] = 0
        # last, because from now on the next cluster may pass the token on
        self._words[HOLDER] = clusters[(clusters.index(own) + 1) % len(clusters)]

    @torch.no_grad()
    def agree(self, clusters: Sequence[int]) -> None:
        """All have stopped: make every copy the start of the round and the changes of all. If the worker that does so
        is lost, another does it again."""
        # made once: a worker that was lost here may have overwritten copies already
        if not self._words[AGREED]:
            for place, agreed in enumerate(self.agreed):
                self._add_up(place, clusters, agreed)
            self._words[AGREED] = 1
        for values in [*self.copies, *self.known]:
            for value, agreed in zip(values, self.agreed, strict=True):
                value.copy_(agreed)

    def _add_up(self, place: int, clusters: Sequence[int], total: Tensor) -> None:
        holder, passing = self.holder(clusters), int(self._words[PASSING]) - 1
        last = holder if self._words[LAST] == NOBODY or place < passing else int(self._words[LAST])
        total.copy_(self.known[last][place])
        for cluster in clusters:
            if cluster != holder or place != passing:  # its copy was left between two values
                total.add_(self.copies[cluster][place] - self.known[cluster][place])


class ClusterRingSynchronizer(LockFreeSynchronizer):
    """Of one part, on a copy for each cluster. `hold`: steps of a cluster's first worker before it passes the token."""

    def __init__(self, exchange: GradientExchange, host: CopyHost, steps: int, clusters: int, hold: int = 1) -> None:
        super().__init__(exchange, host, steps)
        self.clusters, self.hold = clusters, hold
        self._ring_order: list[int] = []
        """The clusters that had workers when the round began."""
        self._passes, self._held = False, 0
        """Whether this worker passes the token on for its cluster, and the steps it has made since it came."""

    def _share(self, part: Part) -> None:
        self.copy = SharedParameters(self.host, self._parameters, part.optimizers, self.clusters)
        size = SharedTensors.bytes_for(self._parameters)
        memory = self.host.region(LINE + (self.clusters + 1) * size)
        places = [memory[LINE + n * size :] for n in range(self.clusters + 1)]
        *known, agreed = (SharedTensors(place, self._parameters).views for place in places)
        copies = [self.copy.values_of(cluster) for cluster in range(self.clusters)]
        self.ring = TokenRing(copies, known, agreed, np.frombuffer(memory, np.int64, LINE // 8))

    def _begin_round(self) -> None:
        self.ring.begin()
        super()._begin_round()
        slots = [slot_of(member) for member in self._rounds.view.members]
        self._ring_order = sorted({self.copy.cluster_of(slot) for slot in slots})
        mine = [slot for slot in slots if self.copy.cluster_of(slot) == self.copy.cluster]
        # one worker of each cluster, so that one process at a time has the token
        self._passes, self._held = self.host.slot == min(mine), 0

    def _fill(self) -> None:
        super()._fill()
        for known in self.ring.known:
            for value, parameter in zip(known, self._parameters, strict=True):
                value.copy_(parameter.detach())

    def _count(self) -> None:
        if not self._begun:
            self._begin_round()
        if self._passes and self.ring.holder(self._ring_order) == self.copy.cluster:
            self._held += 1
            if self._held >= self.hold:
                self.ring.pass_on(self._ring_order)
                self._held = 0
        super()._count()

    def _agree(self) -> None:
        """The first member writes the copies, and all wait for that; if it is lost meanwhile the next one does."""
        view: MembershipView = self._rounds.view
        while True:
            first = view.members[0]
            if first == self.part.session.member:
                self.ring.agree(self._ring_order)
            view = self._await_all()
            if view.members[0] == first:
                return
