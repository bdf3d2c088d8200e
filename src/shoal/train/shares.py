"""How much each worker counts in the mean of one join.

A gradient is multiplied by the worker's share when it comes, and by the weight when it leaves:

    share     workers · samples of this one / samples of all; 1, and free, while all have the same
    weight    1 / workers that have samples in this step
    rescale   samples dealt / samples of those that took part, once the sum is there: the others make up for the lost
"""

from collections.abc import Sequence
from typing import Protocol

from shoal.groups.base import WorkerGroup
from shoal.membership.view import MembershipView
from shoal.sync.backward import BackwardHooks
from shoal.sync.batch_tag import BatchTag
from shoal.sync.trained import TrainedSamples


class BatchAgreement(Protocol):
    """Who knows the batches of all workers."""

    def batch_tag(self) -> BatchTag:
        """What this worker says of its batches."""

    def agree_on_batches(self) -> set[str]:
        """After an exchange in which tags differed: the members that took no part in it. A collective call."""

    def round_share(self) -> float | None:
        """This worker's share of the samples dealt since the last round; None where no loader has dealt any."""

    def leased_from(self, place: int) -> list[TrainedSamples]:
        """What this worker has leased since the last round, but for the first `place` batches."""

    def round_launched(self) -> None:
        """What was dealt so far belongs to the round that leaves now."""

    def round_landed(self, view: MembershipView) -> None:
        """The samples of its members in it count."""


class SampleShares:
    """Of one join, whose loss is the `mean` or the `sum` over its samples."""

    def __init__(self, group: WorkerGroup, loss: str, batches: BatchAgreement) -> None:
        self.group, self.loss, self._batches = group, loss, batches
        self.samples = 1
        """Of all workers, in the step that is made next, as far as its gradient is their mean."""
        self.backward: BackwardHooks | None = None
        """Scales gradients; None where nothing is exchanged."""
        self._present = self._everyone = group.size
        self._counts: Sequence[int] = ()
        self._counted = False
        """Whether a loader or the script has said how many samples workers have."""
        self._dealt = self.formed = group.session.committed_view
        """`formed`: the view whose members made the last exchange."""

    def start(self, backward: BackwardHooks | None) -> None:
        """Scale the gradients that come by `backward`."""
        self.backward = backward
        self._follow(self._dealt)

    def listen_to(self, backward: BackwardHooks | None) -> None:
        """After a switch of the plan: scale the gradients that come by `backward`, by the counts that hold."""
        self.backward = backward
        self._scale_gradients()

    def follow_view(self) -> None:
        """Before an exchange: where nobody counts samples, the members that are there count alike."""
        dealt = self.group.session.committed_view
        if not self._counted and self.loss == "mean" and dealt is not self._dealt:
            self._follow(dealt)

    def _follow(self, view: MembershipView) -> None:
        self._take((1,) * len(view), view)
        self._present = self._everyone = len(view) or self.group.size
        self._scale_gradients()

    def _scale_gradients(self) -> None:
        """The share of a sum takes the weight back. What has been exchanged before and is still in `p.grad` is
        multiplied by the weight alone, so several passes in a step add up."""
        if self.backward is None:
            return
        if self.loss == "sum":
            self.backward.weigh(self._present, held=self._everyone)
        elif self.group.session.member in self._dealt:
            rank = self._dealt.rank(self.group.session.member)
            self.backward.weigh(
                share(self._counts, rank, self._present), held=share(self._counts, rank, self._everyone)
            )

    def weight(self) -> float:
        """Whoever has nothing in this step stays out of the mean, unless it has held something back before."""
        held = self.backward is not None and self.backward.held
        return 1.0 / (self._everyone if held else self._present)

    def tag(self) -> BatchTag:
        return self._batches.batch_tag()

    def rescale(self, tags_differ: bool) -> float:
        """Whoever is lost, or skips what it was dealt, does not count: the others make up for its part of the mean.

        A sum is the sum of those that are there: the samples of a lost worker are dealt again, and count then.
        """
        self.formed = self.group.session.committed_view
        absent = self._batches.agree_on_batches() if tags_differ else set[str]()
        if self.loss == "sum":
            if not self._counted and self.formed is not self._dealt:
                self._follow(self.formed)
            return 1.0
        if (self.formed is self._dealt and not absent) or not self._counts:
            return 1.0
        dealt = zip(self._counts, self._dealt.members, strict=True)
        here = [n for n, member in dealt if member in self.formed and member not in absent]
        return sum(self._counts) / sum(here) if sum(here) else 1.0

    def round_share(self) -> float:
        """Under `local(…)`. Where no loader deals, by what the script has said last, or all alike."""
        dealt = self._batches.round_share()
        if dealt is not None:
            return dealt
        view = self.group.session.view
        if not self._counted or self._dealt is not view:
            return 1.0 / len(view)
        return share(self._counts, view.rank(self.group.session.member), 1)

    def leased_from(self, place: int) -> list[TrainedSamples]:
        return self._batches.leased_from(place)

    def round_launched(self) -> None:
        self._batches.round_launched()

    def round_landed(self, view: MembershipView) -> None:
        self._batches.round_landed(view)

    def step_share(self) -> float:
        """Under servers. Where no loader deals, by what the script has said last, or all alike."""
        if self.loss == "sum":
            return 1.0
        member = self.group.session.member
        if not self._counted or member not in self._dealt:
            return 1.0 / len(self.group.session.view)
        return share(self._counts, self._dealt.rank(member), 1)

    def weigh(self, counts: Sequence[int]) -> None:
        """Let every worker count by its samples in the passes to come."""
        self._count(counts)
        self._present = sum(n > 0 for n in counts) or len(counts)
        self._scale_gradients()

    def weigh_openly(self, counts: Sequence[int]) -> None:
        """As `weigh`, for a script that calls every pass itself: nobody is ever short of it."""
        self._count(counts)  # the view is that of the gather that brought them
        self._present = len(counts)
        self._scale_gradients()

    def _count(self, counts: Sequence[int]) -> None:
        """Among the members that are dealt samples now."""
        self.samples = (sum(counts) or 1) if self.loss == "mean" else 1
        self._counted = True
        self._take(counts, self.group.session.committed_view)

    def _take(self, counts: Sequence[int], view: MembershipView) -> None:
        self._counts, self._dealt, self._everyone = counts, view, len(counts)


def share(counts: Sequence[int], rank: int, among: int) -> float:
    """How much worker `rank` counts in a mean over `among` workers: 1 when all have the same."""
    total = sum(counts)
    return among * counts[rank] / total if total else 1.0
