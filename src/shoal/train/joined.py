"""What one `join` sets up: models and optimizers under one synchronizer, and the hooks that drive it.

    model(…)              before_forward, forward_ended                          (train/restarts.py)
    loss.backward()       backward_began, gradient_ready …, backward_ended       (sync/backward.py)
    optimizer.step()      before_step, after_step                                (train/step_hooks.py)

What every worker has in each step it is told by the `StepCoordinator`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import WorkerState
from shoal.sync.backward import BackwardHooks
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.independent import IndependentSynchronizer
from shoal.sync.local.round_totals import RoundTotals
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.sync.server.served_rows import ServedRowsSynchronizer
from shoal.sync.server.synchronizer import ServerStepsSynchronizer
from shoal.sync.state import State
from shoal.sync.statistics import RunningStatistics
from shoal.sync.synchronizer import Part, Synchronizer, Transactions
from shoal.train.buckets import BucketTimer
from shoal.train.deferred import DeferredUpdates
from shoal.train.forward import listen
from shoal.train.layers import LayerTimer
from shoal.train.members import JoinedMembers
from shoal.train.numerics import GradientSums
from shoal.train.precision.base import ModelPrecision
from shoal.train.progress import StepProgress
from shoal.train.restarts import ForwardRestarts
from shoal.train.shares import BatchAgreement, SampleShares
from shoal.train.step_hooks import StepHooks

OF_ONE_PLAN = ("guard.", "auto.")
"""How names of state begin that means nothing under another plan: how far a guard went, what wire(auto) chose."""


class JoinObserver(BatchAgreement, Protocol):
    """Who knows what all joins of a run do together: the `StepCoordinator`."""

    @property
    def transaction(self) -> Transactions: ...

    def pass_began(self) -> None:
        """A backward pass that is exchanged begins, before anything of it is said to others."""

    def before_step(self, joined: "JoinedModels", optimizer: Optimizer, closure: bool) -> None: ...

    def after_step(self, joined: "JoinedModels", optimizer: Optimizer, closure: bool) -> None: ...

    def wants_boundary(self) -> bool:
        """Whether something waits for a moment at which all replicas are equal."""


class JoinedModels:
    """Models and optimizers under one plan. `exchange`: whose bytes and seconds count as theirs."""

    def __init__(
        self,
        group: WorkerGroup,
        members: JoinedMembers,
        exchange: GradientExchange,
        synchronizer: Synchronizer,
        progress: StepProgress,
        observer: JoinObserver,
    ) -> None:
        self.group, self.members, self.exchange, self.progress = group, members, exchange, progress
        self.synchronizer, self.observer = synchronizer, observer
        self.alone = isinstance(synchronizer, IndependentSynchronizer)
        """Whether every worker trains a model of its own."""
        self.lockstep = synchronizer.lockstep
        self.exchanged = False
        """Whether there was an exchange in this step."""
        self.explicit = False
        """Whether the exchange under way was asked for by `run.exchange`."""
        self.exchanges = self.exchanges_at_step = 0
        """Exchanges that are complete, now and when an optimizer last made a step."""
        self.passes = 0
        """Exchanges that have begun."""
        self.round_totals = synchronizer.totals if isinstance(synchronizer, LocalStepsSynchronizer) else RoundTotals()
        """Of local rounds under all plans so far."""
        self._counted: dict[str, Synchronizer] = {}
        """Of earlier plans, those whose totals go on, by what they counted."""
        self._restarts: list[ForwardRestarts] = []
        self.precision: dict[str, ModelPrecision] = {}
        """What keeps the model in few bits, by its term's name."""
        self.served: ServedRowsSynchronizer | None = None
        """Of the tables and parameters that lie on servers, beside the synchronizer of the rest."""
        self.evidence = GradientSums(members.parameters)
        self.shares = SampleShares(group, members.loss, observer)
        self.is_open_ended = synchronizer.is_open_ended
        self._trained = [parameter.requires_grad for parameter in members.parameters]
        """Which parameters were trained when they were joined: buckets are laid out by it, also after a switch."""
        self._open()
        self.deferred = (
            DeferredUpdates(members, synchronizer, progress.warn, progress.updated)
            if isinstance(synchronizer, NeededOrderSynchronizer)
            else None
        )
        self.backward = BackwardHooks(members.parameters, self) if synchronizer.listens_to_backward else None
        self.shares.start(self.backward)
        self._watch(progress)

    def replace(self, exchange: GradientExchange, synchronizer: Synchronizer) -> tuple[State, State]:
        """Go on under another plan, between two steps; returns the state before and after.

        `exchange` counts on with the observer of the one before. What waits to be sent is a part of gradients under
        one pace and of parameters under another, so state stays only where both compress the same.
        """
        self.settle()
        # leaving may make updates that were put off; their steps are counted already
        with self.suppress_steps():
            self.synchronizer.leave_plan()
        for parameter in self.members.parameters:  # gradients lie in the buckets of the plan before
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.clone()
        before, earlier, state = self.exchange, self.synchronizer, self.synchronizer.state()
        self._count_on(synchronizer)
        stays = earlier.compresses == synchronizer.compresses
        self.exchange, self.synchronizer, self.lockstep = exchange, synchronizer, synchronizer.lockstep
        with self.members.trained_as(self._trained):  # a newcomer lays out the same
            self._open()
        if stays:
            synchronizer.load_state({name: one for name, one in state.items() if not name.startswith(OF_ONE_PLAN)})
        if earlier.listens_to_backward != synchronizer.listens_to_backward:
            self._replace_hooks()
        self._allow_restarts()
        self._steps.replace(synchronizer, self._share_loss if self.lockstep else None)
        before.close()
        self.progress.replace(before, exchange, BucketTimer(exchange, asks=False) if self.lockstep else None)
        return state, synchronizer.state() if stays else {}

    def _count_on(self, synchronizer: Synchronizer) -> None:
        """Totals of the record go on under the new plan, and after plans that had none of the kind."""
        synchronizer.spent = self.synchronizer.spent
        if isinstance(synchronizer, LocalStepsSynchronizer):
            synchronizer.totals = self.round_totals
        if isinstance(self.synchronizer, ServerStepsSynchronizer):
            self._counted["pushes"] = self.synchronizer
        elif isinstance(self.synchronizer, LocalStepsSynchronizer) and self.synchronizer.datagram_counts():
            self._counted["datagrams"] = self.synchronizer
        for earlier in self._counted.values():
            synchronizer.count_on(earlier)

    def _allow_restarts(self) -> None:
        if self.synchronizer.restarts_forwards and not self._restarts:
            self._restarts = [ForwardRestarts(model, lambda: self.synchronizer) for model in self.members.models]

    def _replace_hooks(self) -> None:
        """Under one pace gradients are listened to, under the other they are each worker's own."""
        if self.backward is not None:
            self.backward.remove()
        self.backward = BackwardHooks(self.members.parameters, self) if self.synchronizer.listens_to_backward else None
        self.shares.listen_to(self.backward)

    def _open(self) -> None:
        self.synchronizer.open(self._describe_part())

    def _describe_part(self) -> Part:
        return Part(
            self.members.names,
            self.members.parameters,
            self.group.session,
            self.observer.transaction,
            self.shares,
            self.members.sparse,
            RunningStatistics(self.members.models),
            self.members.optimizers,
            lambda: self.backward is not None and self.backward.running,
            self.observer.wants_boundary,
            self.members.served,
        )

    def _watch(self, progress: StepProgress) -> None:
        spent = self.synchronizer.spent
        buckets = BucketTimer(self.exchange, asks=self.group.slot == 0) if self.lockstep else None
        progress.watch(spent, self.exchange, LayerTimer(self.members, spent), buckets)

        def began(model: nn.Module) -> None:
            self.synchronizer.before_forward()
            if self.served is not None:
                self.served.before_forward()
            progress.forward_began(model)

        for model in self.members.models:
            listen(model, began, progress.forward_ended)
        self._allow_restarts()

    def hook_steps(self, first: bool, share_loss: Callable[[float], float] | None = None) -> None:
        """Hear of every `optimizer.step`. `first`: the first optimizer's steps are the run's."""
        self._share_loss = share_loss
        shared = share_loss if self.lockstep else None
        self._steps = StepHooks(self.members.optimizers, self.synchronizer, self, self.progress, first, shared)

    def suppress_steps(self) -> AbstractContextManager[None]:
        """Inside, steps of the optimizers are not the training's: nobody counts or checks them."""
        return self._steps.suppressed()

    def serve(self, served: ServedRowsSynchronizer) -> None:
        """Some of it lies on servers."""
        self.served = served
        served.open(self._describe_part())

    def refresh_served(self) -> None:
        """Bring the copies of what lies on servers up to date."""
        if self.served is not None:
            self.served.refresh()

    def before_step(self, optimizer: Optimizer, closure: bool) -> None:
        if self.served is None:
            self.observer.before_step(self, optimizer, closure)
        else:
            with self.served.preparing(optimizer):
                self.observer.before_step(self, optimizer, closure)

    def after_step(self, optimizer: Optimizer, closure: bool) -> None:
        if self.deferred is not None:
            self.deferred.stepped()
        if self.served is not None:
            before = self.served.bytes_sent
            # the others have committed the step by now, so a push never has to be withdrawn
            self.served.after_step(optimizer)
            # pushes go past the exchange, and are counted with its bytes
            self.exchange.observer.sent_bytes += self.served.bytes_sent - before
        self.observer.after_step(self, optimizer, closure)

    def backward_began(self) -> None:
        self.group.board.note(self.group.slot, WorkerState.exchanging)
        self.observer.pass_began()
        if not self.lockstep:  # the plan was switched right here: these gradients are this worker's own
            return
        self.exchanged = True
        self.passes += 1
        self.progress.exchange_began()
        self.shares.follow_view()
        self.evidence.clear()
        self.synchronizer.backward_began()

    def gradient_arriving(self) -> None:
        self.synchronizer.gradient_arriving()

    def gradient_ready(self, index: int) -> None:
        # before it leaves: afterwards its place in the bucket holds the sum of all workers
        self.evidence.saw(index, self.members.parameters[index].grad)
        self.synchronizer.gradient_ready(index)

    def backward_ended(self) -> None:
        if not self.lockstep:
            return
        self.synchronizer.backward_ended()
        self.exchanges += 1
        self.group.board.note(self.group.slot, WorkerState.computing)

    def settle(self) -> None:
        """When this returns, nothing is under way: no exchange, and no update that was put off."""
        self.synchronizer.settle()

    @property
    def arrivals(self) -> int:
        """Counts up with every backward pass, exchanged or held back."""
        return self.passes + (self.backward.arrivals if self.backward is not None else 0)

    def weigh(self, counts: Sequence[int]) -> None:
        """Let every worker count by its samples in the passes to come."""
        self.exchanged = False
        self.shares.weigh(counts)

    @property
    def lockstep_synchronizer(self) -> LockstepSynchronizer:
        """The plan's own, of a part that has one."""
        assert isinstance(self.synchronizer, LockstepSynchronizer)
        return self.synchronizer

    @contextmanager
    def explicitly(self) -> Iterator[None]:
        """Inside, an exchange includes frozen parameters: a script may write gradients of those too."""
        self.explicit = self.lockstep_synchronizer.all_buckets = True
        try:
            yield
        finally:
            self.explicit = self.lockstep_synchronizer.all_buckets = False

    def exchange_gradients(self) -> None:
        """Exchange whatever `p.grad` holds now, as if a backward pass had just left it there."""
        assert self.backward is not None
        self.settle()
        self._scale_written(self.backward.share, self.backward.held_indices)
        with self.explicitly():
            self.backward_began()
            for index, parameter in enumerate(self.members.parameters):
                self.evidence.saw(index, parameter.grad)
            self.backward_ended()
        # what passes had held back has left with the rest
        self.backward.held_indices.clear()

    def _scale_written(self, factor: float, held: set[int]) -> None:
        """What the script wrote is scaled as a backward pass would have scaled it; what came from one already is."""
        found, fresh = self.lockstep_synchronizer, self.exchanges > self.exchanges_at_step
        for index, parameter in enumerate(self.members.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse and index not in self.members.sparse:
                raise UsageError(
                    f"run.exchange(): the gradient of {self.members.names[index]!r} is sparse; only that of "
                    "nn.Embedding(sparse=True) may be: write p.grad = gradient.to_dense()"
                )
            exchanged = fresh and (gradient is found.bucket_view(index) or found.had(index))
            if factor != 1.0 and index not in held and not exchanged:
                parameter.grad = gradient * factor

    def begin_without_samples(self) -> None:
        """Take part in an exchange of the others, with nothing but what was held back in earlier steps."""
        assert self.backward is not None
        if self.backward.held:
            self.synchronizer.backward_began()
        else:
            self.lockstep_synchronizer.begin_empty_handed()

    def ended_without_samples(self) -> None:
        """The exchange is committed."""
        assert self.backward is not None
        self.backward.held_indices.clear()

    def kept(self) -> dict[str, Tensor]:
        """What its precision remembers: the same on all workers, and taken over with the weights."""
        return {f"{name}.{kind}": t for name, one in self.precision.items() for kind, t in one.state().items()}

    @property
    def agreed(self) -> bool:
        """Whether the gradients of all workers that were in this step are equal now."""
        return self.exchanged and self.backward is not None and not self.backward.held
