"""The contract of a synchronizer: HOW, WHEN and WHAT the replicas of one part of a model agree on.

    open(part, state)          once, when the part is joined
    before_forward()           a model of the part is called
    forward_ended()            it has returned; True: it is to be called again
    backward_began()           the first gradient of a backward pass has been computed
    gradient_ready(i)          parameter i's gradient is complete for this pass
    backward_ended()           the pass is over; when all parts of it have ended, `p.grad` is what the plan promises
    before_step(optimizer)     LOCAL: the script's optimizer makes the step; REMOTE: the step finds no gradients
    after_step(optimizer)      the step is made: average parameters, push a delta, mix with neighbours
    skip_step()                this worker had no samples in a step that the others made
    settle()                   finish everything under way, before an evaluation, a checkpoint or the end of the run
    on_view_change(old, new)   the members have changed; may come between any two other calls
    state()                    what is carried from step to step

All are called in the training thread. Whatever involves other members is a transaction (`Part.transaction`): a
synchronizer never calls the session itself, and need not handle members that are lost in the middle.
"""

import enum
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor
from torch.optim import Optimizer

from shoal.membership.session import FixedSession, MembershipSession
from shoal.membership.view import MembershipView
from shoal.sync.batch_tag import BatchTag
from shoal.sync.cost import ExchangeCost
from shoal.sync.state import State
from shoal.sync.statistics import RunningStatistics
from shoal.sync.trained import TrainedSamples


class StepAction(enum.Enum):
    """Which side makes an optimizer's step."""

    LOCAL = "the script's optimizer"
    REMOTE = "somebody else: the gradients were taken away"


class TransactionParticipant(Protocol):
    """One exchange of a transaction. `prepare` and `finish` raise ViewEnded when members are lost."""

    spent: ExchangeCost

    def begin(self) -> None:
        """Begin: nothing has been sent, so `is_complete` is false from now on."""

    def prepare(self) -> None:
        """Wait until buckets may be written; called again if the view ends before anything was sent."""

    def launch(self) -> None:
        """Send everything that has not been sent yet."""

    def finish(self) -> None:
        """Wait for all results."""

    def is_complete(self) -> bool:
        """Return whether `finish` needs nothing more from other members. Any thread may ask."""

    def retry(self) -> None:
        """Members are lost: send again what was sent, among the members of the new view."""

    def finish_locally(self) -> None:
        """Members are lost, but the others hold all parts: finish without messages."""

    def abandon(self) -> bool:
        """An exception ended the pass, on all workers alike. Return whether anything was sent and must be finished."""

    def reset(self) -> None:
        """After `abandon`, when everything sent is finished: forget it."""

    def deliver(self) -> None:
        """The transaction is committed: put the results where they belong."""

    def is_running(self) -> bool:
        """Return whether the backward pass in which `begin` was called still runs."""


class Transactions(Protocol):
    """The step's transaction, as synchronizers use it: see `train/step_transaction.py`."""

    starts_at_end: bool
    """Whether nothing may be sent before the backward pass has ended, because an announcement comes first."""

    def begin(self, participant: TransactionParticipant) -> None:
        """Join the transaction of this backward pass."""

    def end(self, participant: TransactionParticipant) -> None:
        """End its pass. With the last participant's, all are committed and each is told to `deliver`."""

    def run(self, participant: TransactionParticipant) -> MembershipView:
        """Make a transaction outside of backward passes; return the view whose members completed it."""

    def start(self, participant: TransactionParticipant) -> None:
        """The first half of `run`: send everything. No other transaction may begin before `conclude`."""

    def conclude(self, participant: TransactionParticipant) -> MembershipView:
        """The second half: wait for the results, and deliver them."""


class SampleWeights(Protocol):
    """How much this worker's gradients and samples count."""

    def weight(self) -> float:
        """Return the factor of this worker's gradients in the sum."""

    def tag(self) -> BatchTag:
        """Return which batch the gradients belong to."""

    def rescale(self, tags_differ: bool) -> float:
        """Return the factor of complete sums, which corrects for workers that are lost or have skipped their batch."""

    def round_share(self) -> float:
        """Return this worker's share of all samples dealt since the last round."""

    def round_launched(self) -> None:
        """Note that a round was sent and lands later: batches so far belong to it, later ones to the next."""

    def round_landed(self, view: MembershipView) -> None:
        """Note that the round was completed by the members of `view`: their samples count."""

    def step_share(self) -> float:
        """Return this worker's share of the step's samples; 1 where losses are sums, because changes then add up."""

    def leased_from(self, place: int) -> list[TrainedSamples]:
        """Return the leased samples this worker got since the last round, without the first `place` batches."""


class EqualWeights:
    """All workers of a view count alike: the null member."""

    def __init__(self, session: MembershipSession) -> None:
        self._session = session

    def weight(self) -> float:
        return 1.0 / len(self._session.view)

    def tag(self) -> BatchTag:
        return BatchTag()

    def rescale(self, tags_differ: bool) -> float:
        return 1.0

    def round_share(self) -> float:
        return self.weight()

    def round_launched(self) -> None:
        """Samples are not counted."""

    def round_landed(self, view: MembershipView) -> None:
        """Samples are not counted."""

    def step_share(self) -> float:
        return self.weight()

    def leased_from(self, place: int) -> list[TrainedSamples]:
        return []


class SingleTransactions:
    """Transactions of a fixed set of members, each with one participant: the null member."""

    starts_at_end = False

    def __init__(self, view: MembershipView) -> None:
        self.view = view
        self._open: TransactionParticipant | None = None

    def begin(self, participant: TransactionParticipant) -> None:
        # an exception ended the last pass: what it has sent is finished before another begins
        if self._open is participant and participant.abandon():
            participant.finish()
        if self._open is participant:
            participant.reset()
        self._open = participant
        participant.begin()
        participant.prepare()

    def end(self, participant: TransactionParticipant) -> None:
        participant.launch()
        self.conclude(participant)

    def run(self, participant: TransactionParticipant) -> MembershipView:
        self.start(participant)
        return self.conclude(participant)

    def start(self, participant: TransactionParticipant) -> None:
        self.begin(participant)
        participant.launch()

    def conclude(self, participant: TransactionParticipant) -> MembershipView:
        participant.finish()
        self._open = None
        participant.deliver()
        return self.view


@dataclass
class Part:
    """A set of parameters under one synchronizer, and what the synchronizer may use."""

    names: Sequence[str]
    parameters: Sequence[Tensor]
    session: MembershipSession = field(default_factory=lambda: FixedSession(0, 1))
    transaction: Transactions = field(default_factory=lambda: SingleTransactions(FixedSession(0, 1).view))
    weights: SampleWeights = field(default_factory=lambda: EqualWeights(FixedSession(0, 1)))
    sparse: Sequence[int] = ()
    """Indices of parameters with sparse gradients."""
    statistics: RunningStatistics = field(default_factory=lambda: RunningStatistics([]))
    optimizers: Sequence[Optimizer] = ()
    is_backward_running: Callable[[], bool] = lambda: False
    wants_boundary: Callable[[], bool] = lambda: False
    """Whether this worker knows of a checkpoint, newcomer or stop that waits for equal replicas."""
    served: Sequence[int] = ()
    """Indices of parameters that lie on servers: their gradients are left alone, whatever the others' become."""


class Synchronizer(ABC):
    """HOW x WHEN x WHAT of one part. Used by the training thread only."""

    lockstep: bool = False
    """Whether `p.grad` is equal on all workers after a backward pass. Then it takes part in every step's transaction,
    all workers see numbers that are not finite, and a worker without samples takes part with zeros."""
    replicas_equal: bool = True
    """Whether all workers hold equal parameters now; the same value on all workers after the same step."""
    is_round_open: bool = False
    """Whether steps were made that other workers have not received yet; checkpoints and newcomers wait for that.
    The same value on all workers after the same step."""
    listens_to_backward: bool = False
    """Whether it needs `backward_began`, `gradient_ready` and `backward_ended`, whose hooks cost time."""
    restarts_forwards: bool = False
    """Whether it needs `forward_ended`, and may let a forward pass be made again."""
    compresses: Literal["gradients", "changes", "pushed gradients"] = "gradients"
    """What its codec gets, so what residuals are parts of: parts of mean gradients, changes of parameters since all had
    the same, or gradients of single workers. They go on only under a plan that compresses the same."""
    is_open_ended: bool = False
    """Whether an exchange may go on after a pass has ended; then `gradient_arriving` is called for every gradient."""
    spent: ExchangeCost
    part: Part

    def __init__(self) -> None:
        self.spent = ExchangeCost()

    def open(self, part: Part, state: State | None = None) -> None:
        """Begin with `part`; `state` is that of an earlier synchronizer of the same kind."""
        self.part = part
        if state is not None:
            self.load_state(state)

    def before_forward(self) -> None:  # noqa: B027
        """A model of the part is called."""

    def forward_ended(self) -> bool:
        """It has returned. True: parameters have changed since it was called, so it is to be called again with the same
        inputs, and what it returned is dropped."""
        return False

    def backward_began(self) -> None:  # noqa: B027
        """The first gradient of a backward pass has been computed."""

    def gradient_arriving(self) -> None:  # noqa: B027
        """A gradient is about to be added to `p.grad`."""

    def gradient_ready(self, index: int) -> None:  # noqa: B027
        """`p.grad` of parameter `index` is complete for this pass."""

    def backward_ended(self) -> None:  # noqa: B027
        """The pass is over."""

    def before_step(self, optimizer: Optimizer) -> StepAction:
        """Gradients are complete and an optimizer of the part is about to use them; called for each of them."""
        return StepAction.LOCAL

    def after_step(self, optimizer: Optimizer) -> None:  # noqa: B027
        """The optimizer's step is made, or was taken away."""

    def skip_step(self) -> None:  # noqa: B027
        """The others make a step in which this worker has no samples: take part in what involves all members."""

    def settle(self) -> None:  # noqa: B027
        """Return when nothing is under way and parameters are what the plan promises."""

    def leave_plan(self) -> None:  # noqa: B027
        """Another plan follows, and `settle` was called: make the steps that were put off, and leave memory that is
        shared. All workers do the same, and none waits for another. Gradients stay as they are."""

    def count_on(self, before: "Synchronizer") -> None:  # noqa: B027
        """Go on with the totals of an earlier plan's synchronizer, if it was of this kind."""

    def agreed_parameters(self) -> AbstractContextManager[None]:
        """Inside, parameters hold the values all workers last agreed on, for a checkpoint or a newcomer."""
        return nullcontext()

    def on_view_change(self, old: MembershipView, new: MembershipView) -> None:  # noqa: B027
        """Follow a change of members. This is no transaction, so it must not wait for other members."""

    def state(self) -> State:
        """Return what is carried from step to step, by name."""
        return {}

    def load_state(self, state: State) -> None:  # noqa: B027
        """Take over what `state` returned, in this or an earlier process; names may be missing."""
