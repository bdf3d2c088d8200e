"""Before every step: each parameter is known to a join, and its gradient came from an exchange.

    parameter that no join knows                                       refused: workers would train it apart
    gradient where the last exchange left it                           fine, clipped and scaled in place or not
    another tensor, and the exchange since the last step had one       fine: the script made it from what was exchanged
    no exchange since the last step, the gradients of that step        fine: the same on all workers still
    no exchange since the last step, and zero                          fine
    anything else                                                      refused: the script wrote it

Gradients are looked at where workers agree in every step; under `local(…)`, `shared` and servers each has its own.

Costs a look at `p.grad` of each parameter, by identity; numbers are looked at only in a step without an exchange. An
optimizer that was given a closure makes its passes inside the step, so its gradients are looked at after it. A worker
whose gradients are its own is never refused.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.train.joined import JoinedModels


@dataclass(frozen=True)
class KnownParameter:
    """Whose it is, and where an exchange leaves its gradient; None if that is sparse."""

    joined: JoinedModels
    index: int
    view: Tensor | None


@dataclass(frozen=True)
class LastStep:
    """Of one optimizer and one join: exchanges that were complete, and how often each bucket had been written to."""

    exchanges: int = 0
    versions: tuple[int, ...] = ()


class StepCheck:
    """Of all joins of a run."""

    def __init__(self) -> None:
        self._joined: list[JoinedModels] = []
        self._known: dict[int, KnownParameter] = {}
        """By identity; joins hold their parameters."""
        self._last: dict[tuple[int, int], LastStep] = {}
        """By optimizer and join."""
        self._ids: set[int] = set()
        """Of the parameters of all joins."""
        self._written_to: list[JoinedModels] = []
        """Whose parameters all workers hold alike after a step, or after a round."""
        self._written: int | None = None

    @property
    def untouched(self) -> bool:
        """Whether nobody has written to a parameter since the last step: all workers must hold the same ones."""
        return self._written is not None and self._written == self._count_writes()

    def _count_writes(self) -> int:
        # torch counts writes in place; updates that were put off come later, and are not the script's
        return sum(p._version for one in self._written_to if one.deferred is None for p in one.members.parameters)

    def add(self, joined: JoinedModels) -> None:
        if joined.alone:
            return
        self._written_to.append(joined)
        self._ids.update(map(id, joined.members.parameters))
        if not joined.lockstep:
            return
        self._joined.append(joined)
        for index, parameter in enumerate(joined.members.parameters):
            self._known[id(parameter)] = KnownParameter(joined, index, joined.lockstep_synchronizer.bucket_view(index))

    def begin_plan(self) -> None:
        """All joins train by another plan: gradients lie elsewhere, or are each worker's own."""
        joins = self._written_to
        self._joined, self._known, self._written_to = [], {}, []
        for joined in joins:
            self.add(joined)

    def agreed(self) -> None:
        """A round has ended: all workers hold the same."""
        self._written = self._count_writes()

    def before(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """UsageError if the step would make replicas differ."""
        if not joined.alone:
            self._check_known(optimizer)
        if joined.lockstep and not closure:
            self._check_gradients(optimizer)

    def after(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """Remember what this step was made from."""
        if not joined.lockstep:
            return
        if closure:
            self._check_known(optimizer)
            self._check_gradients(optimizer)
        self._written = self._count_writes()
        for one in self._joined:
            one.exchanges_at_step = one.exchanges
            versions = tuple(bucket.result._version for bucket in one.lockstep_synchronizer.buckets)
            self._last[id(optimizer), id(one)] = LastStep(one.exchanges, versions)

    def _check_known(self, optimizer: Optimizer) -> None:
        for number, group in enumerate(optimizer.param_groups):
            if not self._ids.issuperset(map(id, group["params"])):  # in every step: without a loop in Python
                place = next(place for place, late in enumerate(group["params"]) if id(late) not in self._ids)
                raise UsageError(self._unknown(group["params"][place], number, place))

    def _check_gradients(self, optimizer: Optimizer) -> None:
        fresh = {
            id(one): one.exchanges > self._last.get((id(optimizer), id(one)), LastStep()).exchanges
            for one in self._joined
        }
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known, gradient = self._known[id(parameter)], parameter.grad
                if gradient is None:
                    continue
                exchanged = fresh[id(known.joined)]
                if (gradient is known.view and exchanged) or self._is_common(optimizer, known, gradient, exchanged):
                    continue
                name = known.joined.members.names[known.index]
                raise UsageError(
                    f"optimizer.step(): the gradient of {name!r} came from no exchanged backward pass, and each "
                    "worker has its own; call run.exchange() after writing p.grad, or let loss.backward() make it"
                )

    def _is_common(self, optimizer: Optimizer, known: KnownParameter, gradient: Tensor, exchanged: bool) -> bool:
        """Whether all workers have this gradient, though it is not simply what the last exchange has left."""
        found = known.joined.lockstep_synchronizer
        if exchanged:
            return found.had(known.index)
        if gradient is known.view:
            number = next(n for n, bucket in enumerate(found.buckets) if any(v is gradient for v in bucket.views))
            last = self._last.get((id(optimizer), id(known.joined)), LastStep())
            if last.versions and last.versions[number] == gradient._version:
                return True
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        return not bool(values.any())

    def _unknown(self, parameter: Tensor, group: int, place: int) -> str:
        models = [model for one in self._written_to for model in one.members.models]
        names = (name for model in models for name, known in model.named_parameters() if known is parameter)
        name = next(names, "")
        own = "" if self._joined else ", with an optimizer of its own,"
        what = f"parameter {name!r}" if name else f"a parameter of shape {list(parameter.shape)}"
        return (
            f"optimizer.step(): {what} (group {group}, place {place}) came into the optimizer after join(), so each "
            f"worker would train its own; add it before join(), or give its module{own} to another run.join()"
        )
