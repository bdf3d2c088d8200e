"""Steps in which some workers have no sample: they take part in the others' exchanges, then take over their state.

    with samples      announce the joins of every exchange │ … │ done, or agreed: all gradients are equal
    without           short                                 │ … │ take part with zeros; adopt what the step came to

Repeating only the optimizer's step would miss whatever the script does in between.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import msgspec

from shoal.core.errors import PayloadError, PeerLost
from shoal.groups.base import WorkerGroup
from shoal.train.closures import MARK, SharedLoss, combine_losses, read_loss
from shoal.train.joined import JoinedModels
from shoal.train.numerics import NonFiniteReport
from shoal.train.state import adopt_gradients, adopt_state
from shoal.train.state_check import check_states
from shoal.train.step_transaction import StepTransaction

_DONE, _AGREED, _SHORT = b"done", b"agreed", b"short"
_EXPLICIT = b"!"
"""After the numbers of joins: the exchange is one of `run.exchange`."""
_LAST_STEP = 1 << 53


class ShortSteps:
    """Of one worker. All calls but `take_part` are collective."""

    def __init__(
        self,
        group: WorkerGroup,
        joined: Sequence[JoinedModels],
        transaction: StepTransaction,
        undo: Callable[[], None],
    ) -> None:
        """`undo` is called when all who know what a step came to are lost, so that it was not made."""
        self.group, self.joined, self.transaction, self._undo = group, joined, transaction, undo

    def announce(self, parts: Sequence[JoinedModels]) -> None:
        """Those with samples say which joins they exchange next."""
        numbers = ",".join(str(self.joined.index(part)) for part in parts)
        explicit = any(part.explicit for part in parts)
        self.group.gather(numbers.encode() + (_EXPLICIT if explicit else b""))

    def take_part(self, parts: Sequence[JoinedModels], explicit: bool = False) -> None:
        """Take part in one transaction of the others, without samples."""
        with ExitStack() as explicitly:
            for part in parts if explicit else ():
                explicitly.enter_context(part.explicitly())
            for part in parts:
                part.begin_without_samples()
            self.transaction.commit()
        for part in parts:
            part.ended_without_samples()

    def follow(self) -> int | None:
        """Those without samples take part in all that the others do in this step; returns the number of the step they
        have made (0 if it is lost with them), None if there is nobody who makes it."""
        said, givers = self._hear(_SHORT)
        while said not in (_DONE, _AGREED, _SHORT):
            if not said.startswith(b"{"):  # else the others tell of a loss, or of numbers that are not finite
                numbers = _read_joins(said, len(self.joined))
                self.take_part([self.joined[n] for n in numbers], explicit=said.endswith(_EXPLICIT))
            said, givers = self._hear(_SHORT)
        if said == _SHORT:
            return None
        if not self.adopt(said == _AGREED, givers):
            self._undo()
            return 0
        # those with samples tell the number, and the others send nothing
        return int(next(filter(None, self.group.gather(b"", check=_read_step))))

    def hand_over(self, step: int) -> None:
        """Those with samples have made `step`: give the others what it came to."""
        agreed = all(joined.agreed or not joined.exchanged for joined in self.joined)
        said, givers = self._hear(_AGREED if agreed and any(one.exchanged for one in self.joined) else _DONE)
        self.adopt(said == _AGREED, givers)
        self.group.gather(str(step).encode())

    def share_loss(self, kind: str, loss: float, count: int) -> float:
        """Combine everybody's loss (a `mean` or a `sum` over `count` samples); those without samples hear of it."""
        data = msgspec.json.encode(SharedLoss(repr(loss), count))
        return combine_losses(self.group.gather(data, check=self._read), kind)

    def _hear(self, word: bytes) -> tuple[bytes, list[str]]:
        """What those with samples say, and who they are; `short` if there is nobody left of them."""
        words = self.group.gather(word, check=self._read)
        members = self.group.session.committed_view.members
        having = [(said, member) for said, member in zip(words, members, strict=True) if said != _SHORT]
        return having[0][0] if having else _SHORT, [member for _, member in having]

    def _read(self, said: bytes) -> None:
        """Raise for what no worker says here; those that are remote are not believed (`WorkerGroup.gather`)."""
        if said.startswith(MARK):
            read_loss(said)
        elif said.startswith(b"{"):
            msgspec.json.decode(said, type=NonFiniteReport)
        elif said not in (_DONE, _AGREED, _SHORT):
            _read_joins(said, len(self.joined))

    def adopt(self, gradients: bool, givers: Sequence[str]) -> bool:
        """Let all have the state that `givers` have, and their gradients if asked for.

        Return False if all that know the state are lost, and nothing has changed.
        """
        for number, joined in enumerate(self.joined):
            members = joined.members
            tensors = [*members.parameters, *joined.kept().values()]
            check = partial(check_states, parameters=members.parameters)
            models, optimizers = members.models, members.optimizers
            if not adopt_state(self.group, models, optimizers, tensors, givers, members.stateful, check):
                # earlier joins have the new state already, and there is no way back
                if number:
                    raise PeerLost(
                        f"worker {self.group.rank} stops: who knew the state was lost while it was handed on"
                    )
                return False
            if gradients:
                adopt_gradients(self.group, members.parameters, givers)
        return True


def _read_joins(said: bytes, joins: int) -> list[int]:
    """The joins whose exchange is announced, each once."""
    try:
        numbers = [int(text) for text in said[:4096].removesuffix(_EXPLICIT).split(b",")]
    except ValueError:
        numbers = []
    if not numbers or len(set(numbers)) < len(numbers) or any(n not in range(joins) for n in numbers):
        raise PayloadError(f"{said[:20]!r} names no joins of {joins}")
    return numbers


def _read_step(said: bytes) -> None:
    if said and not 0 <= int(said) < _LAST_STEP:
        raise PayloadError(f"{said[:20]!r} is no step")
