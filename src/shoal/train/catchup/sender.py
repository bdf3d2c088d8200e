"""The lender's side of a loan.

asked ── one update is weighed ── too large: refused
                               └─ the state, as it is between two steps ── every update ── a proof ── the rest

Whatever else changes a weight ends all loans: torch counts what is written to a tensor, so that is seen at the next
update. What it does not count (`p.data`) the newcomer finds out when it enters; it ends, and nothing is lent any more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch.optim import Optimizer

from shoal.groups.state_streaming import StateStreamServer
from shoal.train.catchup.update import UnfitError, bulk, proof, write
from shoal.train.checkpoint.shard import ShardError, pieces
from shoal.train.checkpoint.snapshot import common
from shoal.train.joined import JoinedModels

LEAST = 1 << 20
"""Bytes of a state below which nobody minds waiting."""
SHARE = 16
"""A step's updates may be one of so many parts of the state; all of a loan together as large as the state."""

MOST_PARKED = 8
"""Loans kept over the end of a view; newcomers that do not come back leave theirs behind."""
CHANGED = "something but the optimizer changes the weights"


@dataclass
class _CatchUp:
    refused: str = ""
    updates: int = 0
    size: int = 0
    """Bytes of the updates."""
    proved: bool = False
    arrived: int = 0
    """Items that have arrived for certain; the first is the state."""
    unsure: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Updates that may not have arrived: number of the update -> number of its item in the loan, and the update."""


class CatchUpSender:
    """Of a worker that trains: told of every boundary between steps, and of every update before it is made."""

    def __init__(self, desk: StateStreamServer, joined: Sequence[JoinedModels]) -> None:
        self.desk, self.joined = desk, joined
        self._loans: dict[str, _CatchUp] = {}
        self._parked: dict[str, _CatchUp] = {}
        """Loans of views that have ended without the newcomer: their updates are kept until it is let in."""
        self._weighs = False
        self._weight = self._state = 0
        """Bytes of a step's updates, and of the state."""
        self._written: list[int] = []
        """How often each parameter had been written to, by the last update."""
        self._entered: set[str] = set()
        """Who has entered with a loan, in the view that stands."""
        self._distrusted = ""

    def between(self) -> None:
        """Nothing is under way, and newcomers may be let in next."""
        new = [member for member in self.desk.asked() if member not in self._loans]
        self._drop()
        for member, loan in self._loans.items():
            self._look_after(member, loan)
        if new and not self._weighs and not self._objection():
            self._weighs, self._weight = True, 0
            return
        for member in new:
            self._begin(member)
        self._drop()
        self._weighs = False

    def _drop(self) -> None:
        """Loans of newcomers that have not been heard of for long; they may still be on their way in."""
        for member in [member for member in self._loans if not self.desk.serves(member)]:
            self._park(member, self._loans.pop(member))

    def _park(self, member: str, loan: _CatchUp) -> None:
        if loan.arrived and not loan.refused:
            self._parked[member] = loan

    def _look_after(self, member: str, loan: _CatchUp) -> None:
        if loan.refused:
            return
        if loan.updates and not loan.proved:
            loan.proved = True
            texts = {"kind": "proof", "proof": proof(bulk(self.joined))}
            self.desk.give(member, _text(texts))
        loan.arrived = self.desk.arrived(member)
        if self.desk.stalled(member):
            loan.refused, loan.unsure = "it took nothing of what was sent to it", {}
            self.desk.drop(member)
            return
        loan.unsure = {number: (item, data) for number, (item, data) in loan.unsure.items() if item >= loan.arrived}

    def _objection(self) -> str:
        if self._distrusted:
            return self._distrusted
        if len(self.joined) != 1:
            return "the script joins several times"
        one = self.joined[0]
        if one.deferred is not None or one.precision or not one.lockstep:
            return "under this plan not all changes are the optimizer's"
        self._state = sum(t.numel() * t.element_size() for t in bulk(self.joined).values())
        return f"the state is small ({self._state} bytes)" if self._state < LEAST else ""

    def _begin(self, member: str) -> None:
        self._parked.pop(member, None)  # its updates have other numbers
        loan = self._loans[member] = _CatchUp(self._objection())
        self.desk.open(member)
        if not loan.refused and self._weight * SHARE > self._state:
            loan.refused = f"a step changes much ({self._weight} bytes of {self._state})"
        data = b""
        try:
            if not loan.refused:
                tensors, texts = common(self.joined)
                data = b"".join(pieces(tensors, texts | {"kind": "state"}))
                self.updated()
        except ShardError as error:
            loan.refused = str(error)
        self.desk.give(member, data or _refusal(loan.refused))

    def updating(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """`optimizer` of `joined` steps next, with the gradients that are there."""
        lent = {member: loan for member, loan in self._loans.items() if not loan.refused}
        parked = [loan for loan in self._parked.values() if not loan.refused]
        if not self._weighs and not lent and not parked:
            return
        try:
            if (lent or parked) and self._counted() != self._written:
                raise UnfitError(CHANGED)
            data = self._record(joined, optimizer, closure)
        except UnfitError as error:
            self._weight = self._state
            for member in lent:
                self._withdraw(member, str(error))
            for loan in parked:
                loan.refused = str(error)
            return
        self._weight += len(data)
        for loan in parked:
            self._keep(loan, data)
        for member, loan in lent.items():
            self._tell(member, loan, data)

    def updated(self) -> None:
        """An update has been made."""
        if self._loans or self._parked:
            self._written = self._counted()

    def _counted(self) -> list[int]:
        return [parameter._version for one in self.joined for parameter in one.members.parameters]

    def _record(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> bytes:
        if closure:
            raise UnfitError("the optimizer computes gradients itself")
        if len(self.joined) > 1:
            raise UnfitError("the script joins several times")
        return write(optimizer, joined.members.optimizers.index(optimizer))

    def _tell(self, member: str, loan: _CatchUp, data: bytes) -> None:
        if excess := self._count(loan, data):
            self._withdraw(member, excess)
        else:
            loan.unsure[loan.updates] = (self.desk.give(member, data), data)

    def _keep(self, loan: _CatchUp, data: bytes) -> None:
        """For the newcomer's entry: no link leads to it between two views."""
        if excess := self._count(loan, data):
            loan.refused, loan.unsure = excess, {}
        else:
            loan.unsure[loan.updates] = (loan.arrived, data)

    def _count(self, loan: _CatchUp, data: bytes) -> str:
        """Why this update is one too many; empty: it is not."""
        loan.updates += 1
        loan.size += len(data)
        if loan.size <= self._state:
            return ""
        return f"{loan.updates} updates are {loan.size} bytes, of a state of {self._state}"

    def _withdraw(self, member: str, reason: str) -> None:
        loan = self._loans[member]
        loan.refused, loan.unsure = reason, {}
        self.desk.give(member, _refusal(reason))

    def rest(self, member: str) -> dict[int, bytes] | str:
        """Updates that a newcomer who was let in may not have got, by number; a text: why its loan does not count."""
        loan = self._loans.get(member) or self._parked.get(member)
        if loan is None or not (loan.refused or loan.arrived):
            return "the loan it came with was another one"
        if loan.refused or self._counted() != self._written:
            return loan.refused or CHANGED
        self._entered.add(member)
        return {number: data for number, (_, data) in loan.unsure.items()}

    def change(self, members: Collection[str]) -> None:
        """These are the members from now on. Who entered with a loan and is gone with the next view had a bad one.

        A view may be made without the newcomers that were to enter, if a member had begun the step that was agreed on.
        They hold what was lent them all the same, and enter with one of the next views.
        """
        if gone := sorted(self._entered - set(members)):
            self._distrusted = f"{gone[0]} was lost right after it had a loan"
        for member, loan in self._loans.items():
            self._park(member, loan)
        self._entered &= set(self._parked)  # handed over to just now
        waiting = [(member, loan) for member, loan in self._parked.items() if member not in members]
        self._parked = dict(waiting[-MOST_PARKED:])
        self._loans.clear()
        self.desk.close()


def _refusal(reason: str) -> bytes:
    return _text({"kind": "refused", "why": reason})


def _text(texts: dict[str, str]) -> bytes:
    return b"".join(pieces({}, texts))
