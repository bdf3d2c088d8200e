"""The contract of a synchronizer: HOW, WHEN and WHAT the replicas of one part of a model agree on.

    open(part, state)          once, when the part is joined
    before_forward()           a model of the part is called
    backward_began()           the first gradient of a backward pass is there
    gradient_ready(i)          parameter i's gradient is complete for this pass
    backward_ended()           the pass is over; when all parts of it have ended, `p.grad` is what the plan promises
    before_step(optimizer)     LOCAL: the script's optimizer makes the step; REMOTE: the step finds no gradients
    after_step(optimizer)      the step is made: average parameters, push a delta, mix with neighbours
    skip_step()                this worker had no sample in a step that the others made
    settle()                   nothing stays under way: an evaluation, a checkpoint or the end of the run follows
    on_view_change(old, new)   the members have changed; called between any two of the others
    state()                    what is carried from step to step

All are called in the training thread. What members do together is a transaction (`Part.transaction`): a synchronizer
never calls the session itself, and need not know that members may be lost in the middle.
"""

import enum
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

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
    """Who makes an optimizer's step."""

    LOCAL = "the script's optimizer"
    REMOTE = "somebody else: the gradients were taken away"


class TransactionParticipant(Protocol):
    """One exchange of a transaction. `prepare` and `finish` raise ViewEnded when members are lost."""

    spent: ExchangeCost

    def begin(self) -> None:
        """Nothing has left: `is_complete` is false from now on."""

    def prepare(self) -> None:
        """Wait until buckets may be written again; again, if the view ends before anything has left."""

    def launch(self) -> None:
        """Let everything leave that has not yet."""

    def finish(self) -> None:
        """Wait for all results."""

    def is_complete(self) -> bool:
        """Whether `finish` could end without anybody's help. Any thread may ask."""

    def retry(self) -> None:
        """Members are lost: let all that has left leave again, among those of the new view."""

    def finish_locally(self) -> None:
        """Members are lost, but everybody else holds all parts: finish without anybody's help."""

    def abandon(self) -> bool:
        """An exception ended the pass, on all workers alike; whether anything has left that must be finished."""

    def reset(self) -> None:
        """After `abandon`, when what had left is finished: forget it."""

    def deliver(self) -> None:
        """The transaction is committed: put the results where they belong."""

    def is_running(self) -> bool:
        """Whether the backward pass that `begin` was called in still runs."""


class Transactions(Protocol):
    """The step's transaction, as synchronizers use it: see `train/step_transaction.py`."""

    starts_at_end: bool
    """Whether nothing may leave before the backward pass has ended: there is something to be said first."""

    def begin(self, participant: TransactionParticipant) -> None:
        """Join the transaction of this backward pass."""

    def end(self, participant: TransactionParticipant) -> None:
        """Its pass has ended. With the last one's all are committed, and each is told to `deliver`."""

    def run(self, participant: TransactionParticipant) -> MembershipView:
        """A transaction of its own, outside of backward passes; returns the view whose members made it."""

    def start(self, participant: TransactionParticipant) -> None:
        """The first half of `run`: everything leaves. No other transaction may begin before `conclude`."""

    def conclude(self, participant: TransactionParticipant) -> MembershipView:
        """The second half: wait for the results, and deliver them."""


class SampleWeights(Protocol):
    """How much this worker's gradients count."""

    def weight(self) -> float:
        """What they are multiplied by before they are added up."""

    def tag(self) -> BatchTag:
        """Which batch they are of."""

    def rescale(self, tags_differ: bool) -> float:
        """What sums are multiplied by once they are complete: workers may be lost, or have skipped their batch."""

    def round_share(self) -> float:
        """This worker's share of the samples that all have been dealt since the last round."""

    def round_launched(self) -> None:
        """A round leaves and is waited for later: what was dealt so far belongs to it, what follows to the next."""

    def round_landed(self, view: MembershipView) -> None:
        """It has come, from the members of `view`: their samples count."""

    def step_share(self) -> float:
        """Its share of the samples of this step; 1 where losses are sums, because changes then add up."""

    def leased_from(self, place: int) -> list[TrainedSamples]:
        """What this worker was given of leased samples since the last round, but for the first `place` batches."""


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
        """Nobody counts samples."""

    def round_landed(self, view: MembershipView) -> None:
        """Nobody counts samples."""

    def step_share(self) -> float:
        return self.weight()

    def leased_from(self, place: int) -> list[TrainedSamples]:
        return []


class SingleTransactions:
    """Transactions of members that stay, each of a single participant: the null member."""

    starts_at_end = False

    def __init__(self, view: MembershipView) -> None:
        self.view = view
        self._open: TransactionParticipant | None = None

    def begin(self, participant: TransactionParticipant) -> None:
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
    """A set of parameters under one synchronizer, and whom it may ask."""

    names: Sequence[str]
    parameters: Sequence[Tensor]
    session: MembershipSession = field(default_factory=lambda: FixedSession(0, 1))
    transaction: Transactions = field(default_factory=lambda: SingleTransactions(FixedSession(0, 1).view))
    weights: SampleWeights = field(default_factory=lambda: EqualWeights(FixedSession(0, 1)))
    sparse: Sequence[int] = ()
    """Which parameters have sparse gradients."""
    statistics: RunningStatistics = field(default_factory=lambda: RunningStatistics([]))
    optimizers: Sequence[Optimizer] = ()
    is_backward_running: Callable[[], bool] = lambda: False
    wants_boundary: Callable[[], bool] = lambda: False
    """Whether this worker knows of a checkpoint, a newcomer or a stop that waits until all replicas are equal."""


class Synchronizer(ABC):
    """HOW x WHEN x WHAT of one part. Used by the training thread alone."""

    lockstep: bool = False
    """Whether `p.grad` is the same on all workers when a backward pass has ended: it takes part in every step's
    transaction, bad numbers are everybody's, and a worker without samples takes part with zeros."""
    replicas_equal: bool = True
    """Whether all workers hold the same parameters now; the same value on all workers after the same step."""
    is_round_open: bool = False
    """Whether steps were made that others know nothing of yet: checkpoints and newcomers wait until there are none. The
    same value on all workers after the same step."""
    listens_to_backward: bool = False
    """Whether it wants `backward_began`, `gradient_ready` and `backward_ended`: hooks on parameters cost time."""
    is_open_ended: bool = False
    """Whether gradients may be on their way when a pass has ended: then it is told of every `gradient_arriving`."""
    spent: ExchangeCost
    part: Part

    def __init__(self) -> None:
        self.spent = ExchangeCost()

    def open(self, part: Part, state: State | None = None) -> None:
        """Begin with `part`; `state`: what another synchronizer of the same kind left for it."""
        self.part = part
        if state is not None:
            self.load_state(state)

    def before_forward(self) -> None:  # noqa: B027
        """A model of the part is called."""

    def backward_began(self) -> None:  # noqa: B027
        """The first gradient of a backward pass is there."""

    def gradient_arriving(self) -> None:  # noqa: B027
        """A gradient is about to be added to what `p.grad` holds."""

    def gradient_ready(self, index: int) -> None:  # noqa: B027
        """`p.grad` of parameter `index` is complete for this pass."""

    def backward_ended(self) -> None:  # noqa: B027
        """The pass is over."""

    def before_step(self, optimizer: Optimizer) -> StepAction:
        """Gradients are complete, and the optimizer is about to use them; called for each optimizer of the part."""
        return StepAction.LOCAL

    def after_step(self, optimizer: Optimizer) -> None:  # noqa: B027
        """The optimizer's step is made, or was taken away."""

    def skip_step(self) -> None:  # noqa: B027
        """The others make a step for which this worker has no sample: do what all must do together."""

    def settle(self) -> None:  # noqa: B027
        """When this returns, nothing is under way and parameters are what the plan says they are."""

    def agreed_parameters(self) -> AbstractContextManager[None]:
        """Inside, parameters hold what all workers agreed on last, for a checkpoint or a newcomer; then their own."""
        return nullcontext()

    def on_view_change(self, old: MembershipView, new: MembershipView) -> None:  # noqa: B027
        """The members are those of `new` from now on. Not a transaction: nothing may be waited for here."""

    def state(self) -> State:
        """What is carried from step to step, by name."""
        return {}

    def load_state(self, state: State) -> None:  # noqa: B027
        """Go on with what `state` gave, in this or an earlier process; names may be missing."""
