"""A copy of the parameters for each cluster of workers; a token round their ring passes changes on (HogWild++).

    workers 0 1 ──> copy 0 ──┐ the cluster that has the token adds β of its copy's changes to the next one's copy,
    workers 2 3 ──> copy 1 <─┘ goes 1 - β of the way to that copy, and gives the token on

Zhang, Hsieh & Akella, "HogWild++: A New Mechanism for Decentralized Asynchronous Stochastic Gradient Descent", ICDM
2016. Writes stay in the caches of one cluster's cores, so a host with several sockets sends few cache lines between
them. For n clusters β² = (n - 1)(1 - β): so a change of one comes to every copy, in the end with its full size; with
two it is the paper's 0.618. When all workers meet, the token goes round until little is left to pass on, and copies
become their mean. Each cluster has an optimizer's state of its own.

The token is with one cluster at a time, and one worker acts for it, so nobody waits for it. It begins anew in every
round: the loss of the worker that has it stops it until then. Do not use it on a host with one socket: there one copy
is as fast, and always up to date. Nor with a learning rate near its limit or an adaptive optimizer at a high one: what
clusters do without knowing of each other adds up, so they overshoot where one copy would not.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.sync.shared.lock_free import LockFreeSynchronizer

HOLD = 1
"""Steps that a cluster's worker makes before it passes the token on. Clusters that learn late of each other's changes
overshoot; where steps are so short that a pass over all parameters counts, more would be quicker."""


SETTLING = 8
"""Rounds of the ring when all meet: the mean of up to eight copies then holds a change to 1 % of its size."""


def passed_share(clusters: int) -> float:
    """Return β, the share of its changes that a cluster passes on."""
    others = clusters - 1
    return (math.sqrt(others * others + 4 * others) - others) / 2


@torch.no_grad()
def pass_changes(own: Sequence[Tensor], known: Sequence[Tensor], following: Sequence[Tensor], share: float) -> None:
    """Let `following` learn what has changed in `own` since `known`, which becomes what `own` is afterwards.

    Others write into both copies meanwhile; differences are added, so that what they write is not overwritten.
    """
    for mine, before, theirs in zip(own, known, following, strict=True):
        now_ = mine.clone()
        move = (theirs - now_).mul_(1 - share)
        theirs.add_(now_ - before, alpha=share)
        mine.add_(move)
        before.copy_(now_).add_(move)


class ClusterRingSynchronizer(LockFreeSynchronizer):
    """Of one part, on one copy for each of `clusters` clusters."""

    def _begin_round(self) -> None:
        """All begin with equal copies."""
        view = self.part.session.view
        if view.rank(self.part.session.member) == 0:  # nobody passes it on before all have begun
            self.copy.token[0] = self.copy.cluster
            for cluster in range(self.clusters if self.copy.is_filled else 0):
                _copy(self.copy.values(cluster), self.copy.known[cluster])
        super()._begin_round()
        self._held = 0

    def _count(self) -> None:
        super()._count()
        if self._begun and int(self.copy.token[0]) == self.copy.cluster and self._acts():
            self._held += 1
            if self._held >= HOLD:
                self._pass_on()

    def _acts(self) -> bool:
        """Return whether this worker is the first of its cluster that is a member."""
        mine = [slot for slot in self._slots(self.part.session.view) if self.copy.cluster_of(slot) == self.copy.cluster]
        return mine[:1] == [self.group.slot]

    def _slots(self, view: MembershipView) -> list[int]:
        return sorted(slot_of(member) for member in view.members)

    def _manned(self, view: MembershipView) -> list[int]:
        """Return the clusters that have a worker, in the order of the ring."""
        return sorted({self.copy.cluster_of(slot) for slot in self._slots(view)})

    def _pass_on(self) -> None:
        manned, own = self._manned(self.part.session.view), self.copy.cluster
        following = manned[(manned.index(own) + 1) % len(manned)]
        self._pass(own, following, len(manned))
        self._held = 0
        self.copy.token[0] = following

    def _pass(self, own: int, following: int, clusters: int) -> None:
        if following != own:
            copy = self.copy
            pass_changes(copy.values(own), copy.known[own], copy.values(following), passed_share(clusters))

    def _agree(self) -> None:
        """Make all copies their mean; the next worker does so again if the one that does is lost meanwhile."""
        view = self.formed
        while view is not None:
            if view.members[0] == self.part.session.member:
                self._average(self._manned(view))
            self._rounds.mean([], 0.0, (0.0, 0.0, 0.0))
            stayed = self._rounds.view.members[0] == view.members[0]
            view = None if stayed else self._rounds.view

    @torch.no_grad()
    def _average(self, manned: Sequence[int]) -> None:
        """Let changes go round the copies that have workers; then write their mean into all."""
        for turn in range(SETTLING * len(manned)):
            self._pass(manned[turn % len(manned)], manned[(turn + 1) % len(manned)], len(manned))
        for place in range(len(self._parameters)):
            mean = torch.stack([self.copy.values(cluster)[place] for cluster in manned]).mean(0)
            for cluster in range(self.clusters):
                self.copy.values(cluster)[place].copy_(mean)


def _copy(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for value, target in zip(values, into, strict=True):
        target.copy_(value)
