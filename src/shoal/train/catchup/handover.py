"""The state of a run, handed by a worker that trains to those that come later: what worker 0 puts into a checkpoint,
and what all exchanges remember alike (the factors of lowrank, how far a guard has tightened, a choice that was made).

donor      state and where the training stands ── groups/state_transfer ──>
newcomer   takes that of the view it was let in with, and goes on as the donor does
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from shoal.core.clock import now
from shoal.core.events import WorkerEntered
from shoal.groups.base import WorkerGroup
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.view import MembershipView
from shoal.train.catchup.receiver import CatchUpReceiver
from shoal.train.catchup.rehearsal import EntryRehearsal
from shoal.train.catchup.sender import StreamRest
from shoal.train.catchup.update import UPDATE, bulk, proof
from shoal.train.checkpoint.residuals import MARK
from shoal.train.checkpoint.resume import State
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.snapshot import TrainingPosition, common
from shoal.train.checkpoint.sync_schedule import SyncSchedule
from shoal.train.joined import JoinedModels


@dataclass(frozen=True)
class HandedState:
    """What a newcomer gets."""

    state: State
    dealt: MembershipView
    schedule: SyncSchedule


def write(
    joined: Sequence[JoinedModels],
    where: TrainingPosition,
    dealt: MembershipView,
    schedule: SyncSchedule,
    rest: StreamRest | None = None,
    why: Mapping[str, str] | None = None,
) -> bytes:
    """The state as it is now, for newcomers; for one that has had a stream, what it lacks, with the `rest` of updates.

    `why`: for those whose stream does not count, the reason.
    """
    tensors, texts = common(joined)
    if rest is not None:
        streamed = bulk(joined)
        texts |= {"stream": proof(streamed), "through": str(rest.through)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in streamed}
        tensors |= {
            f"{UPDATE}{n}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for n, data in rest.updates.items()
        }
    for number, one in enumerate(joined):
        shared = {name: part.values for name, part in one.synchronizer.state().items() if part.merge == "equal"}
        tensors |= {f"{number}{MARK}{name}": tensor for name, tensor in shared.items()}
    texts |= {
        "where": msgspec.json.encode(where).decode(),
        "dealt": msgspec.json.encode(dealt).decode(),
        "agenda": msgspec.json.encode(schedule).decode(),
        "why": msgspec.json.encode(why or {}).decode(),
    }
    return b"".join(pieces(tensors, texts))


def give(
    group: WorkerGroup,
    joined: Sequence[JoinedModels],
    where: TrainingPosition,
    schedule: SyncSchedule,
    rests: Mapping[str, StreamRest | str],
) -> None:
    """To all newcomers of the view what each needs.

    `rests`: for those to whom the state was streamed the last updates, or why the stream does not count.
    """
    session, transfer = group.session, group.transfer
    why = {member: rest for member, rest in rests.items() if isinstance(rest, str)}
    whole = [member for member in session.fresh if member not in rests or member in why]
    if whole:
        transfer.give(session.view, whole, write(joined, where, session.committed_view, schedule, why=why))
    for member in session.fresh:
        rest = rests.get(member)
        if rest is not None and not isinstance(rest, str):
            transfer.give(session.view, [member], write(joined, where, session.committed_view, schedule, rest))


def read(data: bytes | bytearray) -> HandedState:
    """What `write` wrote."""
    state = parse(bytes(data), "the state handed over")
    texts = state[1]
    return HandedState(
        state,
        msgspec.json.decode(texts["dealt"], type=MembershipView),
        msgspec.json.decode(texts["agenda"], type=SyncSchedule),
    )


def take_over(group: WorkerGroup, joined: JoinedModels) -> tuple[HandedState, WorkerEntered]:
    """Become a member of a run that trains already, with what its donor hands over."""
    session, transfer, began = group.session, group.transfer, now()
    assert isinstance(session, ElasticSession)
    handed: list[HandedState] = []
    # under another pace no member would stream it, and asking takes some steps
    client = group.state_stream_client() if joined.lockstep else None
    receiver = CatchUpReceiver(client, joined) if client is not None else None
    given, generation = 0, -1

    def take() -> MembershipView | None:
        nonlocal given, generation
        # a newer view has a donor of its own, whose state is taken instead
        if generation != session.view.generation:
            data = transfer.take(session.view, session.install.donor)
            if data is None:
                return None
            given, generation = len(data), session.view.generation
            handed[:] = [read(data)]
            if receiver is not None:
                receiver.latest = 0
        tensors, texts = handed[0].state
        if receiver is not None and "stream" in texts:
            if receiver.lacks(tensors, texts):
                return None
            given += receiver.latest
            receiver.rest(tensors, texts)
        return handed[0].dealt

    session.join_running(take, receiver, EntryRehearsal(joined).is_ready)
    texts = handed[0].state[1]
    why = msgspec.json.decode(texts.get("why", "{}"), type=dict[str, str]).get(session.member, "")
    return handed[0], _told(receiver, "stream" in texts, given, now() - began, why)


def _told(receiver: CatchUpReceiver | None, streamed: bool, given: int, seconds: float, why: str) -> WorkerEntered:
    return WorkerEntered(
        at=time.time(),
        step=0,
        given=given,
        streamed=receiver.client.size if receiver is not None and streamed else 0,
        updates=receiver.updates if receiver is not None and streamed else 0,
        seconds=seconds,
        why="" if receiver is None or streamed else receiver.why or why,
    )
