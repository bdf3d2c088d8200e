"""Worlds whose members change when the test says so: what an exchange does then, without a coordinator to decide it.

The last worker is lost in the middle of an exchange, in a `Stage`; the others make it again without it, or keep it.
"""

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from by_links import linked_by_files
from forked import soon

from shoal.core.errors import ViewEnded
from shoal.groups.base import WorkerGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.session import MembershipSession, member_name, slot_of
from shoal.membership.view import MembershipView
from shoal.sync.exchange.base import GradientExchange
from shoal.testing.exchange import fill, taken
from shoal.testing.world import Result, WorkerWorld
from shoal.wire.bucket import GradientBucket
from shoal.wire.redeal import folded

WAIT = 60.0


class Stage(enum.Enum):
    """How far the last worker comes in the exchange it is lost in."""

    absent = "it has not begun"
    started = "all its buckets have left, and it has finished none"
    finished = "it and the first worker have finished, the others have not"
    whole = "as finished, and the exchange counts"


class Told(MembershipSession):
    """A session whose view ends when the test says so."""

    ended = False
    next_plan = ""
    """What is switched to before the next step, if anything."""

    def __init__(self, member: str, view: MembershipView) -> None:
        super().__init__()
        self.member, self.view = member, view

    @property
    def committed_view(self) -> MembershipView:
        return self.view

    @property
    def proposed(self) -> bool:  # type: ignore[override]
        """Plans that let something travel come to a moment with nothing under way for it."""
        return bool(self.next_plan)

    @property
    def disturbed(self) -> bool:
        return self.ended

    def doubt(self, peers: Mapping[str, bool]) -> None:
        """Nobody asks."""

    def enter(self, holds: Callable[[], bool]) -> None: ...

    def complete(self) -> None: ...

    def settle(self) -> bool:
        raise AssertionError("the test settles what happens")

    def begin(self, step: int, admits: bool = True) -> bool:
        if self.next_plan:
            plan, self.next_plan = self.next_plan, ""
            self.switch(plan)
        return True

    def change(self, members: Sequence[str], fresh: Sequence[str] = ()) -> None:
        """The next view."""
        self._enter(MembershipView(self.view.generation + 1, tuple(members), self.view.plan, self.view.switches), fresh)

    def switch(self, plan: str) -> None:
        """The next view: the same members, another plan."""
        view = self.view
        self._enter(MembershipView(view.generation + 1, view.members, plan, view.switches + 1), ())

    def _enter(self, view: MembershipView, fresh: Sequence[str]) -> None:
        self.view, self.fresh, self.ended = view, tuple(fresh), False
        self.listeners.notify(self.view, self.fresh)


def changing(
    world: WorkerWorld, links: bool, view: MembershipView | None = None, start: int = 0
) -> tuple[WorkerGroup, Told]:
    """The same workers, in a view that may end; `view`: that of a newcomer."""
    slot, size = world.group.slot, world.group.size
    session = Told(member_name(slot, start), view or MembershipView(1, tuple(map(member_name, range(size)))))
    if not links:
        assert isinstance(world.group, SharedGroup)
        return SharedGroup(world.group.arena, slot, size, session), session
    group = linked_by_files(world.group, world.dir)

    class Follow(MembershipListener):
        def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
            group.rank, group.size = view.rank(session.member), len(view)
            group.mesh.leave(view.generation)
            group.mesh.reform(view.generation, [slot_of(member) for member in view.members])

    group.session = session
    group.mesh.reform(1, range(size))
    group.mesh.watch_view(session)
    session.listeners.add(Follow(), ListenerStage.group)
    return group, session


class Play:
    """One worker's exchanges."""

    def __init__(self, exchange: GradientExchange, buckets: list[GradientBucket], folder: Path) -> None:
        self.exchange, self.buckets, self.folder = exchange, buckets, folder
        self.results: list[torch.Tensor] = []

    def begin(self, gradients: list[torch.Tensor], weight: float) -> None:
        self.exchange.prepare()
        fill(self.buckets, gradients, weight)
        for index in range(len(self.buckets)):
            self.exchange.start(index)
            self.exchange.progress()
        self.exchange.all_started()

    def finish(self) -> None:
        for index in range(len(self.buckets)):
            self.exchange.finish(index)

    def take(self) -> None:
        self.results.append(torch.cat([value.view(-1) for _, value in sorted(taken(self.buckets).items())]))
        for bucket in self.buckets:
            bucket.reset()

    def round(self, gradients: list[torch.Tensor], weight: float) -> None:
        self.begin(gradients, weight)
        self.finish()
        self.take()

    def lose(
        self, stage: Stage, rank: int, session: Told, survivors: Sequence[str], finishers: Sequence[int] = (0,)
    ) -> None:
        """After `begin`: the last worker is lost, and the exchange is finished without it.

        `finishers`: the ranks that finish before, if anybody does; those that others cannot finish without.
        """
        if stage in (Stage.finished, Stage.whole):
            if rank in finishers:
                self.finish()
            else:
                self.exchange.finish(0)  # whatever others need of this worker leaves
        self.wait("left")
        if stage is Stage.whole:
            assert soon(WAIT, self.exchange.is_complete)
        if stage is Stage.absent:
            assert not self.exchange.is_complete()
        self.say(f"stood-{rank}")
        for other in range(len(survivors)):
            self.wait(f"stood-{other}")
        session.ended = True
        if stage in (Stage.absent, Stage.started):
            with contextlib.suppress(ViewEnded):
                self.finish()
                assert stage is Stage.started, "an exchange was finished without a worker's part"
        session.change(survivors)
        if stage is not Stage.whole:
            self.exchange.retry()
        elif rank > 0:
            self.exchange.finish_locally()
        if stage is not Stage.whole or rank > 0:
            self.finish()
        self.take()

    def wait(self, word: str) -> None:
        assert soon(WAIT, (self.folder / word).exists), f"nobody said {word}"

    def say(self, word: str) -> None:
        (self.folder / word).touch()


def residuals(exchange: GradientExchange) -> Result:
    """By layer; what waits at an owner is a part of it."""
    state = folded(exchange.state())
    return {n.replace(".", "_"): t.clone() for n, t in state.items() if not n.startswith(("q.", "guard."))}
