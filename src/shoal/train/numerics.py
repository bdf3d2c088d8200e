"""Gradients that are not finite: every worker skips the same step, and the worker they came from is named."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import DivergedError, PayloadError, PeerLost, Quarantined
from shoal.core.events import EventSink, StepSkipped
from shoal.groups.base import WorkerGroup
from shoal.membership.protocol import printable
from shoal.membership.session import slot_of

SMALL = 4096
"""Elements of a parameter that is summed up; the smallest one is, however large."""


class GradientSums:
    """Sums of one worker's own gradients, of the last exchange."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        least = min((p.numel() for p in parameters), default=0)
        self._watched = frozenset(i for i, p in enumerate(parameters) if p.numel() <= max(SMALL, least))
        self._sums: list[Tensor] = []

    def clear(self) -> None:
        self._sums.clear()

    def saw(self, index: int, gradient: Tensor | None) -> None:
        """Gradient `index` as this worker computed it."""
        if index in self._watched and gradient is not None:
            # without coalescing, which sorts: a value that is not finite shows either way
            self._sums.append((gradient._values() if gradient.is_sparse else gradient).detach().sum())

    @property
    def bad(self) -> bool:
        return any(not bool(one.isfinite()) for one in self._sums)


IN_A_ROW = 3
"""Bad steps of one worker, one after the other, that end its part in the run, or the run."""
NOBODY = ""
"""Stands for the steps whose bad numbers were nobody's own."""
SHOWN = 20
"""Samples an event names at the most."""


class NonFiniteReport(msgspec.Struct):
    """What a worker says when a step went wrong."""

    mine: bool
    places: list[int]
    samples: list[str]


class RemoteSuspects:
    """Which remote worker is given up when one of them sends numbers that are not finite and denies it.

    Sums do not tell who. One that was given up while the bad steps went on is innocent: when it comes back, others are
    given up before it. So a liar costs each of the others its place once at the most, and then its own each time.
    """

    def __init__(self) -> None:
        self._acquitted: Counter[int] = Counter()
        """By slot, which a worker that is started again keeps."""
        self._suspect: tuple[int, int] | None = None
        """The slot of the last one, and the step it was given up in."""

    def choose(self, remote: Sequence[str], step: int) -> str:
        """One of `remote`, after bad steps up to `step`: the newest of those that were acquitted least."""
        if self._suspect is not None and step - self._suspect[1] <= 2 * IN_A_ROW:
            self._acquitted[self._suspect[0]] += 1
        chosen = min(reversed(remote), key=lambda member: self._acquitted[slot_of(member)])
        self._suspect = (slot_of(chosen), step)
        return chosen


class NonFiniteGuard:
    """Guards the steps of one join. `own`: whether this worker's were bad; `batch`: its samples in this step."""

    def __init__(
        self,
        group: WorkerGroup,
        sink: EventSink,
        *,
        alone: bool,
        own: Callable[[], bool],
        batch: Callable[[], tuple[list[int], list[str]]],
        step: Callable[[], int],
    ) -> None:
        self.group, self.sink, self.alone = group, sink, alone
        self._own, self._batch, self._step = own, batch, step
        self._row: dict[str, int] = {}
        """Bad steps in a row, by member: ranks change."""
        self._last = -1
        self._suspects = RemoteSuspects()

    def check(self, optimizer: Optimizer) -> None:
        """Let the step go on, or take its gradients away; DivergedError if it has gone wrong too often."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if finite(gradients):
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # without gradients the step changes nothing, on all workers alike
                parameter.grad = None
        self._settle()

    def _settle(self) -> None:
        places, samples = self._batch()
        word = NonFiniteReport(self.alone or self._own(), places[:SHOWN], samples[:SHOWN])
        data = msgspec.json.encode(word)
        said = [data] if self.alone else self.group.gather(data, check=_read)
        words = [_read(text) for text in said]
        session = self.group.session
        members = [session.member] if self.alone else list(session.committed_view.members)
        guilty = {member: told for member, told in zip(members, words, strict=True) if told.mine}
        step, last = self._step(), self._last
        before = self._row if step - last <= 1 else {}
        # of several optimizers each may find the same bad step
        self._row = {member: max(1, before.get(member, 0) + (step > last)) for member in guilty or [NOBODY]}
        self._last = step
        found = {slot_of(member): told for member, told in guilty.items()}
        if self.alone or self.group.rank == 0:
            self._tell(found)
        try:
            self._judge(members)
        except (DivergedError, PeerLost):  # the run ends, perhaps before worker 0 has come so far
            if not self.alone and self.group.rank > 0:
                self._note(found)
            raise

    def _note(self, guilty: dict[int, NonFiniteReport]) -> tuple[list[int], list[str]]:
        """In this worker's record; which places and samples that are."""
        places = [place for told in guilty.values() for place in told.places]
        samples = [sample for told in guilty.values() for sample in told.samples]
        event = StepSkipped(at=time.time(), step=self._step(), workers=list(guilty), places=places, samples=samples)
        self.sink.emit(event)
        return places, samples

    def _tell(self, guilty: dict[int, NonFiniteReport]) -> None:
        places, samples = self._note(guilty)
        whose = ", ".join(f"worker {rank}" for rank in guilty) or "no single worker"
        which = f" (samples {_few(samples)})" if samples else f" (positions {_few(places)})" if places else ""
        sys.stderr.write(f"shoal: step {self._step()} skipped: gradients of {whose} are not finite{which}\n")

    def _judge(self, members: Sequence[str]) -> None:
        session = self.group.session
        # under local(…) each worker judges itself, and knows nothing bad of the others
        rest = any(self._row.get(member, 0) < IN_A_ROW for member in members) or (self.alone and len(session.view) > 1)
        spared = session.elastic and not session.rigid and rest  # the others can go on without those that harm them
        for member, number in self._row.items():
            if number < IN_A_ROW:
                continue
            who = f"worker {slot_of(member)}'s gradients" if member else "the gradients of no single worker"
            text = f"{who} were not finite in {number} steps in a row, the last step {self._last}; "
            text += "look at its samples (shoal show), or lower the learning rate"
            remote = [each for each in members if session.remote(each)]
            if member == NOBODY and remote:  # the run's own workers speak the truth, so a remote one does not
                session.distrust(self._suspects.choose(remote, self._last), PayloadError(text))
                self._row = {}
                return
            if spared and member:
                if member == session.member:
                    raise Quarantined(text, "not finite")
            else:
                raise (DivergedError if member in (session.member, NOBODY) else PeerLost)(text)


def finite(gradients: Sequence[Tensor]) -> bool:
    """Whether every number is finite; costs one pass over the memory."""
    values = [g._values() if g.is_sparse else g for g in gradients]
    if not values:
        return True
    with torch.no_grad():
        # half precision would overflow in a sum of finite numbers
        sums = [v.sum(dtype=torch.float32) if v.element_size() == 2 else v.sum() for v in values]
        quick = all(bool(one.isfinite()) for one in _merged(sums))
        # any sum may overflow, so every number is looked at before a step is called bad
        return quick or all(bool(v.isfinite().all()) for v in values)


def _merged(sums: list[Tensor]) -> Iterable[Tensor]:
    """One number to look at instead of many, where they are of one kind."""
    one = sums[0]
    alike = all(s.dtype == one.dtype and s.device == one.device for s in sums)
    return [torch.stack(sums).sum()] if alike else sums


def _read(said: bytes) -> NonFiniteReport:
    """A worker that is short of samples says only that."""
    return msgspec.json.decode(said, type=NonFiniteReport) if said.startswith(b"{") else NonFiniteReport(False, [], [])


def _few(items: Sequence[object]) -> str:
    return ", ".join(printable(str(item)) for item in items[:5]) + (", …" if len(items) > 5 else "")
