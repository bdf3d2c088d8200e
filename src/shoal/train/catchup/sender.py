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


@dataclass
class _CatchUp:
    refused: str = ""
    updates: int = 0
    size: int = 0
    """Bytes of the updates."""
    proved: bool = False
    unsure: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Updates that may not have arrived: number of the update -> number of its item in the loan, and the update."""


class CatchUpSender:
    """Of a worker that trains: told of every boundary between steps, and of every update before it is made."""

    def __init__(self, desk: StateStreamServer, joined: Sequence[JoinedModels]) -> None:
        self.desk, self.joined = desk, joined
        self._loans: dict[str, _CatchUp] = {}
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
        """Loans of newcomers that are gone."""
        self._loans = {member: loan for member, loan in self._loans.items() if self.desk.serves(member)}

    def _look_after(self, member: str, loan: _CatchUp) -> None:
        if loan.refused:
            return
        if loan.updates and not loan.proved:
            loan.proved = True
            texts = {"kind": "proof", "proof": proof(bulk(self.joined))}
            self.desk.give(member, _text(texts))
        arrived = self.desk.arrived(member)
        loan.unsure = {number: (item, data) for number, (item, data) in loan.unsure.items() if item >= arrived}

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
        if not self._weighs and not lent:
            return
        try:
            if lent and self._counted() != self._written:
                raise UnfitError("something but the optimizer changes the weights")
            data = self._record(joined, optimizer, closure)
        except UnfitError as error:
            self._weight = self._state
            for member in lent:
                self._withdraw(member, str(error))
            return
        self._weight += len(data)
        for member, loan in lent.items():
            self._tell(member, loan, data)

    def updated(self) -> None:
        """An update has been made."""
        if self._loans:
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
        loan.updates += 1
        loan.size += len(data)
        if loan.size > self._state:
            self._withdraw(member, f"{loan.updates} updates are {loan.size} bytes, of a state of {self._state}")
        else:
            loan.unsure[loan.updates] = (self.desk.give(member, data), data)

    def _withdraw(self, member: str, reason: str) -> None:
        loan = self._loans[member]
        loan.refused, loan.unsure = reason, {}
        self.desk.give(member, _refusal(reason))

    def rest(self, member: str) -> dict[int, bytes] | None:
        """Updates that a newcomer who was let in may not have got, by number; None: it has no loan that counts."""
        loan = self._loans.get(member)
        if loan is None or loan.refused or self._counted() != self._written:
            return None
        self._entered.add(member)
        return {number: data for number, (_, data) in loan.unsure.items()}

    def change(self, members: Collection[str]) -> None:
        """These are the members from now on. Who entered with a loan and is gone with the next view had a bad one."""
        if gone := sorted(self._entered - set(members)):
            self._distrusted = f"{gone[0]} was lost right after it had a loan"
        self._entered &= set(self._loans)  # handed over to just now
        self._loans.clear()
        self.desk.close()


def _refusal(reason: str) -> bytes:
    return _text({"kind": "refused", "why": reason})


def _text(texts: dict[str, str]) -> bytes:
    return b"".join(pieces({}, texts))
