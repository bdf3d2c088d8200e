"""What `join` sets up: one set of models and optimizers that the workers train together.

It listens in three places and changes none of them: hooks on the parameters (sync/backward.py), hooks round
`optimizer.step`, and the loader, which tells it what every worker has in each step.

A step in which some workers have no sample:  the others announce each exchange; the workers without join it
empty-handed; at the end of the pass everybody takes over worker 0's state, so that clipping, schedulers and whatever
else the others' scripts did between backward and step is done here too.
"""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from shoal.cluster.board import State
from shoal.cluster.group import Group
from shoal.core.errors import ShoalError
from shoal.sync.backward import Backward
from shoal.sync.exchange.base import Exchange
from shoal.sync.pace.base import Pace
from shoal.train.members import Members
from shoal.train.progress import Progress
from shoal.train.state import adopt_state

_EXCHANGE, _DONE, _SHORT = b"exchange", b"done", b"short"


class AnnouncingPace(Pace):
    """Round the plan's pace: in a step where some workers have nothing, says so before each exchange."""

    def __init__(self, inner: Pace, group: Group) -> None:
        self.inner, self.group = inner, group
        self.spent = inner.spent
        self.some_short = False

    def begun(self) -> None:
        self.group.board.note(self.group.rank, State.exchanging)
        if self.some_short:
            self.group.gather(_EXCHANGE)
        self.inner.begun()

    def ready(self, index: int) -> None:
        self.inner.ready(index)

    def ended(self) -> None:
        self.inner.ended()
        self.group.board.note(self.group.rank, State.computing)

    def stand_in(self) -> None:
        self.inner.stand_in()


class Joined:
    """Models and optimizers under one plan; the loader's observer."""

    def __init__(self, group: Group, members: Members, exchange: Exchange, pace: Pace, progress: Progress) -> None:
        self.group, self.members, self.exchange, self.progress = group, members, exchange, progress
        self.alone = not exchange.peers
        self.pace = AnnouncingPace(pace, group)
        self.backward = None if self.alone else Backward(members.parameters, self.pace)
        progress.watch(pace.spent, exchange)
        for number, optimizer in enumerate(members.optimizers):
            self._listen(optimizer, first=number == 0)

    def _listen(self, optimizer: Optimizer, first: bool) -> None:
        def before(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            if self.backward is not None and self.backward.quiet:
                raise ShoalError("optimizer.step() inside run.accumulate(): its gradients were never exchanged; step after it")
            self.progress.update_began()

        def after(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self.progress.update_ended(first)

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def load_began(self) -> None:
        self._settle()
        self.progress.load_began()

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.progress.load_ended(counts[self.group.rank])
        self.weigh(counts)

    def weigh(self, counts: Sequence[int]) -> None:
        """Let every worker count by its samples in the passes to come."""
        if self.backward is None:
            return
        self.backward.abandon()
        self.backward.weigh(share(counts, self.group.rank))
        self.pace.some_short = 0 in counts

    def weigh_openly(self, counts: Sequence[int]) -> None:
        """As `weigh`, for a script that calls every pass itself: nobody is ever short of it."""
        if self.backward is not None:
            self.backward.weigh(share(counts, self.group.rank))

    def short(self, counts: tuple[int, ...]) -> None:
        if self.alone:
            return
        while True:
            (said, *_) = self.group.gather(_SHORT)
            if said != _EXCHANGE:
                break
            self.pace.stand_in()
        self._adopt()

    def exhausted(self) -> None:
        self._settle()
        if self.backward is not None:
            self.backward.weigh(1.0)
        self.progress.pause()

    def _settle(self) -> None:
        """After a step in which some had nothing: hand them what it came to."""
        if self.pace.some_short:
            self.pace.some_short = False
            self.group.gather(_DONE)
            self._adopt()

    def _adopt(self) -> None:
        adopt_state(self.group, self.members.models, self.members.optimizers, self.members.parameters)


def share(counts: Sequence[int], rank: int) -> float:
    """How much worker `rank` counts: 1 when all have the same, p·n/N in general; the mean over workers is 1."""
    total = sum(counts)
    return len(counts) * counts[rank] / total if total else 1.0
