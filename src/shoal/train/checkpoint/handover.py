"""The state of a run, handed by a worker that trains to those that come later: what worker 0 puts into a checkpoint,
and what all exchanges remember alike (the factors of lowrank, how far a guard has tightened, a choice that was made).

donor      state and where the training stands ── cluster/transfer ──>
newcomer   takes that of the view it was let in with, and goes on as the donor does
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.cluster.group import Group
from shoal.cluster.membership.elastic import Elastic
from shoal.cluster.membership.view import View
from shoal.train.checkpoint.keeper import Agenda
from shoal.train.checkpoint.residuals import MARK
from shoal.train.checkpoint.resume import State
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.snapshot import Where, common
from shoal.train.joined import Joined


@dataclass(frozen=True)
class Handed:
    """What a newcomer gets."""

    state: State
    dealt: View
    agenda: Agenda


def write(joined: Sequence[Joined], where: Where, dealt: View, agenda: Agenda) -> bytes:
    """The state as it is now, for newcomers."""
    tensors, texts = common(joined)
    for number, one in enumerate(joined):
        tensors |= {f"{number}{MARK}{name}": tensor for name, tensor in one.pace.shared().items()}
    texts |= {
        "where": msgspec.json.encode(where).decode(),
        "dealt": msgspec.json.encode(dealt).decode(),
        "agenda": msgspec.json.encode(agenda).decode(),
    }
    return b"".join(pieces(tensors, texts))


def read(data: bytes | bytearray) -> Handed:
    """What `write` wrote."""
    state = parse(bytes(data), "the state handed over")
    texts = state[1]
    return Handed(
        state, msgspec.json.decode(texts["dealt"], type=View), msgspec.json.decode(texts["agenda"], type=Agenda)
    )


def take_over(group: Group, folder: Path) -> Handed:
    """Become a member of a run that trains already, with what its donor hands over."""
    session, transfer = group.session, group.transfer(folder)
    assert isinstance(session, Elastic)
    handed: list[Handed] = []

    def take() -> View | None:
        data = transfer.take(session.view, session.install.donor)
        handed[:] = [read(data)] if data is not None else []
        return handed[0].dealt if handed else None

    session.knock(take)
    return handed[0]
