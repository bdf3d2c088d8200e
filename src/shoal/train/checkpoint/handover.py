"""The state of a run, handed by a worker that trains to those that come later: a shard in the run's folder.

    donor      state and where the training stands -> handover-<epoch>.part -> handover-<epoch>
    newcomer   waits for the file of the view it was let in with, takes it, and goes on as the donor does

It is what worker 0 puts into a checkpoint, without waiting for a disk: nobody needs it after the newcomers have it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.cluster.membership.messages import Install
from shoal.cluster.membership.view import View
from shoal.train.checkpoint.keeper import Agenda
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


def file_of(directory: Path, view: View) -> Path:
    return directory / f"handover-{view.epoch}"


def give(directory: Path, view: View, joined: Sequence[Joined], where: Where, dealt: View, agenda: Agenda) -> None:
    """Write the state for the newcomers of `view`; those of earlier views have theirs."""
    tensors, texts = common(joined)
    texts |= {
        "where": msgspec.json.encode(where).decode(),
        "dealt": msgspec.json.encode(dealt).decode(),
        "agenda": msgspec.json.encode(agenda).decode(),
    }
    tidy(directory)
    path = file_of(directory, view)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for piece in pieces(tensors, texts):
            file.write(piece)
    part.rename(path)


def receive(directory: Path, install: Install) -> Handed | None:
    """What the donor has written; None as long as it has not."""
    path = file_of(directory, install.view)
    try:
        state = parse(path.read_bytes(), path.name)
    except FileNotFoundError:
        return None
    texts = state[1]
    return Handed(
        state, msgspec.json.decode(texts["dealt"], type=View), msgspec.json.decode(texts["agenda"], type=Agenda)
    )


def tidy(directory: Path) -> None:
    """Remove what newcomers have taken."""
    for old in directory.glob("handover-*"):
        old.unlink(missing_ok=True)
