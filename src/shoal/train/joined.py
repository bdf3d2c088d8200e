"""What one `join` sets up: models and optimizers that the workers train together.

It listens in three places and changes none: hooks on the parameters (sync/backward.py), round a model's call and
round `optimizer.step`. What every worker has in each step it is told by `together.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import WorkerState
from shoal.membership.view import MembershipView
from shoal.sync.backward import BackwardHooks
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.pace.base import SyncPace
from shoal.sync.pace.every import EveryPace
from shoal.sync.pace.needed import NeededPace
from shoal.sync.pace.tag import BatchTag
from shoal.train.buckets import BucketTimer
from shoal.train.closures import looks_at_loss, with_shared_loss
from shoal.train.deferred import DeferredUpdates
from shoal.train.forward import listen
from shoal.train.layers import LayerTimer
from shoal.train.members import JoinedMembers
from shoal.train.numerics import GradientSums
from shoal.train.precision.base import ModelPrecision
from shoal.train.progress import StepProgress


class AnnouncingPace(SyncPace):
    """Round the plan's pace: notes on the board what the worker does, and tells when an exchange begins and ends."""

    def __init__(
        self,
        inner: SyncPace,
        group: WorkerGroup,
        parameters: Sequence[Tensor],
        begins: Callable[[], None],
        ends: Callable[[], None],
    ) -> None:
        self.inner, self.group, self.parameters, self._begins, self._ends = inner, group, parameters, begins, ends
        self.spent, self.open_ended = inner.spent, inner.open_ended
        self.evidence = GradientSums(parameters)
        self.exchanges = 0
        """That are complete."""

    def begun(self) -> None:
        self.group.board.note(self.group.seat, WorkerState.exchanging)
        self._begins()
        self.evidence.clear()
        self.inner.begun()

    def arriving(self) -> None:
        self.inner.arriving()

    def ready(self, index: int) -> None:
        self.evidence.saw(index, self.parameters[index].grad)
        self.inner.ready(index)

    def ended(self) -> None:
        self._ends()
        self.inner.ended()
        self.exchanges += 1
        self.group.board.note(self.group.seat, WorkerState.computing)

    def stand_in(self) -> None:
        self.inner.stand_in()

    def exchange(self) -> None:
        """Exchange what every `p.grad` holds now, as if a backward pass had just left it there."""
        self.begun()
        for index, parameter in enumerate(self.parameters):
            self.evidence.saw(index, parameter.grad)
        self.ended()

    def state(self) -> dict[str, Tensor]:
        return self.inner.state()

    def shared(self) -> dict[str, Tensor]:
        return self.inner.shared()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load_state(state)


class JoinedModels:
    """Models and optimizers under one plan. `announce` is called before the wait for an exchange of theirs."""

    def __init__(
        self,
        group: WorkerGroup,
        members: JoinedMembers,
        exchange: GradientExchange,
        pace: SyncPace,
        progress: StepProgress,
        announce: Callable[["JoinedModels"], None],
    ) -> None:
        self.group, self.members, self.exchange, self.progress = group, members, exchange, progress
        self.alone = not exchange.peers and not group.session.elastic  # others may join later
        self.exchanged = False
        """Whether there was an exchange in this step."""
        self.explicit = False
        """Whether the exchange under way was asked for by `run.exchange`."""
        self.exchanges_at_step = 0
        """How many exchanges were complete when an optimizer last made a step."""
        self.precision: dict[str, ModelPrecision] = {}
        """What keeps the model in few bits, by its term's name."""
        self.samples = 1
        """Of all workers, in the step that is made next, as far as its gradient is their mean."""
        self._turns = self._aside = False
        self.passes = 0
        """Exchanges so far."""
        self.tag: Callable[[], BatchTag] = BatchTag
        self.begins: Callable[[], None] = lambda: None
        self.share_loss: Callable[[float], float] | None = None
        """Makes of this worker's loss that of all, for optimizers that look at it; None: it trains alone."""
        """Called before an exchange."""
        self.differ: Callable[[], set[str]] = set
        """Called after an exchange in which tags differed: the members that took no part in it."""
        self._present = self._everyone = group.size
        self._counts: Sequence[int] = ()
        self._counted = False
        """Whether a loader or the script has said how many samples workers have."""
        self._dealt = self.formed = group.session.committed_view
        """`formed`: the view whose members made the last exchange."""
        self.pace = AnnouncingPace(pace, group, members.parameters, self._begun, lambda: announce(self))
        pace.rescale = self._rescale  # type: ignore[method-assign]
        self.deferred = (
            DeferredUpdates(members, pace, progress.warn, progress.updated) if isinstance(pace, NeededPace) else None
        )
        self.backward = None if self.alone else BackwardHooks(members.parameters, self.pace)
        self._follow(self._dealt)
        buckets = None if self.alone else BucketTimer(exchange, asks=group.seat == 0)
        progress.watch(pace.spent, exchange, LayerTimer(members, pace.spent), buckets)
        for model in members.models:
            listen(model, progress.forward_began, progress.forward_ended)

    def listen(self, before_step: "StepListener", after_step: "StepListener", first: bool) -> None:
        """Time every `optimizer.step`, and call others round it. `first`: the first optimizer counts them."""

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            if self._aside:
                return None
            before_step(self, optimizer, _has_closure(args, kwargs))
            self.progress.update_began()
            if self.share_loss is None or not _has_closure(args, kwargs) or not looks_at_loss(optimizer):
                return None
            return with_shared_loss(args, kwargs, self.share_loss)

        for number, optimizer in enumerate(self.members.optimizers):

            def after(optimizer: Optimizer, args: Any, kwargs: Any, counts: bool = first and number == 0) -> None:
                if self._aside:
                    return
                if self.deferred is not None:
                    self.deferred.stepped()
                self.progress.update_ended(counts)
                after_step(self, optimizer, _has_closure(args, kwargs))

            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, steps of the optimizers are none of the training's: nobody counts or checks them."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def take_turns(self) -> None:
        """A backward pass may reach what was joined elsewhere too: let each exchange begin when the pass has ended.

        An exchange is an operation of the members, and they do one after the other.
        """
        self._turns = self.pace.inner.late = True

    def settle(self) -> None:
        """Make all updates that were put off."""
        if self.deferred is not None:
            self.deferred.settle_all()

    @property
    def arrivals(self) -> int:
        """Counts up with every backward pass, exchanged or held back."""
        return self.passes + (self.backward.arrivals if self.backward is not None else 0)

    def _begun(self) -> None:
        self.begins()
        self.exchanged = True
        self.passes += 1
        self._tag()
        self.progress.exchange_began()
        dealt = self.group.session.committed_view
        if not self._counted and self.members.loss == "mean" and dealt is not self._dealt:
            self._follow(dealt)
        self.exchange.weight = self._weight

    def _follow(self, view: MembershipView) -> None:
        """Where nobody counts samples, the members of `view` count alike."""
        self._take((1,) * len(view), view)
        self._present = self._everyone = len(view) or self.group.size
        self._scale_gradients()

    def _scale_gradients(self) -> None:
        """A gradient is multiplied by its share when it comes, and by the weight when it leaves.

        The share of a sum takes the weight back. What has been exchanged before and is still in `p.grad` is multiplied
        by the weight alone, so several passes in a step add up.
        """
        if self.backward is None:
            return
        if self.members.loss == "sum":
            self.backward.weigh(self._present, held=self._everyone)
        elif self.group.session.member in self._dealt:
            rank = self._dealt.rank(self.group.session.member)
            self.backward.weigh(
                share(self._counts, rank, self._present), held=share(self._counts, rank, self._everyone)
            )

    @property
    def _weight(self) -> float:
        """Whoever has nothing in this step stays out of the mean, unless it has held something back before."""
        assert self.backward is not None
        return 1.0 / (self._everyone if self.backward.held else self._present)

    def _tag(self) -> None:
        if isinstance(self.pace.inner, EveryPace):
            self.pace.inner.tag = self.tag()

    def _rescale(self) -> float:
        """Whoever is lost, or skips what it was dealt, does not count: the others make up for its part of the mean.

        A sum is the sum of those that are there: the samples of a lost worker are dealt again, and count then.
        """
        self.formed = self.group.session.committed_view
        absent = self.differ() if isinstance(self.pace.inner, EveryPace) and self.pace.inner.tags_differ() else ()
        if self.members.loss == "sum":
            if not self._counted and self.formed is not self._dealt:
                self._follow(self.formed)
            return 1.0
        if (self.formed is self._dealt and not absent) or not self._counts:
            return 1.0
        dealt = zip(self._counts, self._dealt.members, strict=True)
        here = [n for n, member in dealt if member in self.formed and member not in absent]
        return sum(self._counts) / sum(here) if sum(here) else 1.0

    def weigh(self, counts: Sequence[int], late: bool = False) -> None:
        """Let every worker count by its samples in the passes to come; `late`: see the pace."""
        self.exchanged = False
        self._count(counts)
        self.pace.inner.late = late or self._turns
        if self.backward is not None:
            self._present = sum(n > 0 for n in counts) or len(counts)
            self._scale_gradients()

    def _count(self, counts: Sequence[int]) -> None:
        """Among the members that are dealt samples now."""
        self.samples = (sum(counts) or 1) if self.members.loss == "mean" else 1
        self._counted = True
        self._take(counts, self.group.session.committed_view)

    def _take(self, counts: Sequence[int], view: MembershipView) -> None:
        self._counts, self._dealt, self._everyone = counts, view, len(counts)

    def weigh_openly(self, counts: Sequence[int]) -> None:
        """As `weigh`, for a script that calls every pass itself: nobody is ever short of it."""
        self._count(counts)  # the view is that of the gather that brought them
        if self.backward is not None:
            self._present = len(counts)
            self._scale_gradients()

    @property
    def gradient_pace(self) -> EveryPace:
        """The plan's own pace."""
        assert isinstance(self.pace.inner, EveryPace)
        return self.pace.inner

    @contextmanager
    def explicitly(self) -> Iterator[None]:
        """Inside, an exchange includes frozen parameters: a script may write gradients of those too."""
        self.explicit = self.gradient_pace.all_buckets = True
        try:
            yield
        finally:
            self.explicit = self.gradient_pace.all_buckets = False

    def exchange_gradients(self) -> None:
        """Exchange whatever `p.grad` holds now: gradients the script wrote itself."""
        assert self.backward is not None
        self.settle()
        self._scale_written(self.backward.share, self.backward.held_indices)
        with self.explicitly():
            self.pace.exchange()
        self.backward.held_indices.clear()

    def _scale_written(self, factor: float, held: set[int]) -> None:
        """What the script wrote is scaled as a backward pass would have scaled it; what came from one already is."""
        pace, fresh = self.gradient_pace, self.pace.exchanges > self.exchanges_at_step
        for index, parameter in enumerate(self.members.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse and index not in pace.sparse:
                raise UsageError(
                    f"run.exchange(): the gradient of {self.members.names[index]!r} is sparse; only that of "
                    "nn.Embedding(sparse=True) may be: write p.grad = gradient.to_dense()"
                )
            exchanged = fresh and (gradient is pace.bucket_view(index) or pace.had(index))
            if factor != 1.0 and index not in held and not exchanged:
                parameter.grad = gradient * factor

    def stand_in(self, explicit: bool = False) -> None:
        """Take part in one exchange of the others, with nothing but what was held back in earlier steps."""
        assert self.backward is not None
        self.exchange.weight = self._weight
        self._tag()
        with self.explicitly() if explicit else nullcontext():
            if not self.backward.held:
                self.pace.stand_in()
                return
            self.pace.inner.begun()
            self.pace.inner.ended()
        self.backward.held_indices.clear()

    def kept(self) -> dict[str, Tensor]:
        """What its precision remembers: the same on all workers, and taken over with the weights."""
        return {f"{name}.{kind}": t for name, one in self.precision.items() for kind, t in one.state().items()}

    @property
    def agreed(self) -> bool:
        """Whether the gradients of all workers that were in this step are equal now."""
        return self.exchanged and self.backward is not None and not self.backward.held


StepListener = Callable[[JoinedModels, Optimizer, bool], None]
"""Called round a step; the last says whether the optimizer was given a closure."""


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(given is not None for given in (*args[1:], *kwargs.values()))


def share(counts: Sequence[int], rank: int, among: int) -> float:
    """How much worker `rank` counts in a mean over `among` workers: 1 when all have the same."""
    total = sum(counts)
    return among * counts[rank] / total if total else 1.0
