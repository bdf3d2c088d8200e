"""The member's side of live catch-up: streams its state and every update since to a newcomer.

asked ── one update is weighed ── the link has no room for such: refused
                               └─ the state, as it is between two steps ── every update ── a proof ── the rest

A newcomer gets the proof, and then asks to be let in, when it is *close*: it lacks little but the last update. An
update is *light* if it is at most an eighth of the state, as under sparsifiers and signs. Light ones are always
streamed. While a newcomer that has the state is not close, this worker, and with it all others, stands still for up to
a tenth of a second in each step, because in short steps the stream would never catch up. Other updates are streamed
where the exchange takes at most half of a step, so that the link is idle in the rest of it: elsewhere each step makes
more bytes than the link has room for, and to stand still once costs less.

Anything but the optimizer that changes a weight ends all streams: torch counts writes to a tensor, so the next update
notices. Writes through `p.data` are not counted; the newcomer finds those when it enters, ends, and nothing is streamed
any more.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch.optim import Optimizer

from shoal.core.clock import Deadline, now
from shoal.groups.state_streaming import StateStreamServer
from shoal.train.catchup.update import UnfitError, bulk, proof, write
from shoal.train.checkpoint.shard import ShardError, pieces
from shoal.train.checkpoint.snapshot import common
from shoal.train.joined import JoinedModels

LEAST = 1 << 20
"""Bytes of a state below which waiting for all of it costs too little to matter."""
LIGHT = 8
"""A step's updates are light if they are at most one of so many parts of the state."""
BUSY = 0.5
"""Share of a step in which this worker waits for the exchange, above which the link has no room for other updates."""
MOST, WAITING = 16, 4
"""All updates of a stream may be so many times as large as the state, and so many times those that have not arrived."""
CLOSE = 16
"""A newcomer is close if all updates it lacks but the last are at most one of so many parts of the state."""
PAUSE, NAP = 0.1, 0.002
"""Longest time to stand still in a step for a stream that falls behind, and between two looks, in seconds."""

MOST_PARKED = 8
"""Streams kept over the end of a view; newcomers that do not come back leave theirs behind."""
CHANGED = "something but the optimizer changes the weights"


@dataclass(frozen=True)
class StreamRest:
    """What a newcomer needs besides what has arrived: all updates up to `through`."""

    through: int
    updates: dict[int, bytes]
    """By number; those that are not here are on the way in its stream."""


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
    """Updates that may not have arrived: number of the update -> number of its item in the stream, and the update."""

    @property
    def behind(self) -> int:
        """Return how many bytes of updates may not have arrived."""
        return sum(len(data) for _, data in self.unsure.values())

    @property
    def late(self) -> int:
        """Return the same without the last update, which has only just left."""
        return self.behind - len(self.unsure.get(self.updates, (0, b""))[1])


class CatchUpSender:
    """Of a worker that trains: told of every boundary between steps, and of every update before it is made."""

    def __init__(self, server: StateStreamServer, joined: Sequence[JoinedModels]) -> None:
        self.server, self.joined = server, joined
        self._streams: dict[str, _CatchUp] = {}
        self._parked: dict[str, _CatchUp] = {}
        """Streams of views that have ended without the newcomer: their updates are kept until it enters."""
        self._weighs = False
        self._weight = self._state = 0
        """Bytes of a step's updates, and of the state."""
        self._began = self._waited = 0.0
        """When the step began in which updates are weighed, and seconds of waiting in exchanges by then."""
        self._written: list[int] = []
        """How often each parameter had been written to, by the last update."""
        self._entered: set[str] = set()
        """Newcomers that have entered after a stream, and not taken part in a step yet."""
        self._distrusted = ""

    def between(self) -> None:
        """Nothing is under way, and newcomers may be let in next."""
        new = [member for member in self.server.asked() if member not in self._streams]
        self._drop()
        pause = Deadline.after(PAUSE)
        for member, stream in self._streams.items():
            self._look_after(member, stream, pause)
        if new and not self._weighs and not self._objection():
            # one step is weighed first: whether updates fit the link is only known from one
            self._weighs, self._weight = True, 0
            self._began, self._waited = now(), self._wait()
            return
        for member in new:
            self._begin(member)
        self._drop()
        self._weighs = False

    def _wait(self) -> float:
        return sum(one.synchronizer.spent.wait for one in self.joined)

    def _heavy(self) -> str:
        """Why updates like those of the last step are not streamed; empty: they are."""
        took = max(now() - self._began, NAP)
        busy = (self._wait() - self._waited) / took
        if self._weight * LIGHT <= self._state or busy <= BUSY:
            return ""
        return (
            f"a step changes much ({self._weight} bytes of {self._state}), and the exchange fills {100 * busy:.0f} % "
            "of it: the link has no room for more"
        )

    def _drop(self) -> None:
        """Park the streams of newcomers that have been silent for long; they may still enter."""
        for member in [member for member in self._streams if not self.server.serves(member)]:
            self._park(member, self._streams.pop(member))

    def _park(self, member: str, stream: _CatchUp) -> None:
        if stream.arrived and not stream.refused:
            self._parked[member] = stream

    def _look_after(self, member: str, stream: _CatchUp, pause: Deadline) -> None:
        if stream.refused:
            return
        if stream.updates and not stream.proved and CLOSE * stream.late <= self._state:
            stream.proved = True  # the newcomer asks to be let in when it has compared
            texts = {"kind": "proof", "proof": proof(bulk(self.joined))}
            self.server.give(member, _text(texts))
        stream.arrived = self.server.arrived(member)
        if self.server.stalled(member):
            stream.refused, stream.unsure = "it took nothing of what was sent to it", {}
            self.server.drop(member)
            return
        self._forget_arrived(stream)
        while stream.late > (self._state // CLOSE if stream.arrived else self._state) and not pause.expired:
            time.sleep(NAP)
            stream.arrived = self.server.arrived(member)
            self._forget_arrived(stream)

    def _forget_arrived(self, stream: _CatchUp) -> None:
        stream.unsure = {
            number: (item, data) for number, (item, data) in stream.unsure.items() if item >= stream.arrived
        }

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
        stream = self._streams[member] = _CatchUp(self._objection())
        self.server.open(member)
        stream.refused = stream.refused or self._heavy()
        data = b""
        try:
            if not stream.refused:
                tensors, texts = common(self.joined)
                data = b"".join(pieces(tensors, texts | {"kind": "state"}))
                # writes up to here are in the state; the next update compares with their count
                self.updated()
        except ShardError as error:
            stream.refused = str(error)
        self.server.give(member, data or _refusal(stream.refused))

    def updating(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        """`optimizer` of `joined` steps next, with the gradients that are there."""
        self._entered.clear()  # they were in this step's exchange, so they had found their state to be right
        streaming = {member: stream for member, stream in self._streams.items() if not stream.refused}
        parked = [stream for stream in self._parked.values() if not stream.refused]
        if not self._weighs and not streaming and not parked:
            return
        try:
            if (streaming or parked) and self._counted() != self._written:
                raise UnfitError(CHANGED)
            data = self._record(joined, optimizer, closure)
        except UnfitError as error:
            self._weight = self._state
            for member in streaming:
                self._withdraw(member, str(error))
            for stream in parked:
                stream.refused = str(error)
            return
        self._weight += len(data)
        for stream in parked:
            self._keep(stream, data)
        for member, stream in streaming.items():
            self._tell(member, stream, data)

    def updated(self) -> None:
        """An update has been made."""
        if self._streams or self._parked:
            self._written = self._counted()

    def _counted(self) -> list[int]:
        return [parameter._version for one in self.joined for parameter in one.members.parameters]

    def _record(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> bytes:
        if closure:
            raise UnfitError("the optimizer computes gradients itself")
        if len(self.joined) > 1:
            raise UnfitError("the script joins several times")
        return write(optimizer, joined.members.optimizers.index(optimizer))

    def _tell(self, member: str, stream: _CatchUp, data: bytes) -> None:
        if excess := self._count(stream, data, WAITING):
            self._withdraw(member, excess)
        else:
            stream.unsure[stream.updates] = (self.server.give(member, data), data)

    def _keep(self, stream: _CatchUp, data: bytes) -> None:
        """For the newcomer's entry: no link leads to it between two views."""
        if excess := self._count(stream, data, 1):  # it will be sent when all wait, as the state would be
            stream.refused, stream.unsure = excess, {}
        else:
            stream.unsure[stream.updates] = (stream.arrived, data)

    def _count(self, stream: _CatchUp, data: bytes, waiting: int) -> str:
        """Why this update is one too many; empty: it is not."""
        stream.updates += 1
        stream.size += len(data)
        if stream.behind + len(data) > waiting * self._state:
            return f"{stream.behind + len(data)} bytes of updates wait for the link, of a state of {self._state}"
        if stream.size > MOST * self._state:
            return f"{stream.updates} updates are {stream.size} bytes, of a state of {self._state}"
        return ""

    def _withdraw(self, member: str, reason: str) -> None:
        stream = self._streams[member]
        stream.refused, stream.unsure = reason, {}
        # what is still queued would delay the whole state, which the newcomer gets instead
        self.server.withdraw(member, _refusal(reason))

    def rest(self, member: str) -> StreamRest | str:
        """What a newcomer may lack of the updates when it enters; a text: why its stream does not count."""
        stream = self._streams.get(member) or self._parked.get(member)
        if stream is None or not (stream.refused or stream.arrived):
            return "its state was streamed by another member"
        if stream.refused or self._counted() != self._written:
            return stream.refused or CHANGED
        self._entered.add(member)
        # What is on the way in a stream arrives: a new view does not end it. To send it twice would take twice as long.
        lost = member in self._parked or self.server.broken(member)
        return StreamRest(stream.updates, {number: data for number, (_, data) in stream.unsure.items()} if lost else {})

    def change(self, members: Collection[str]) -> None:
        """These are the members from now on. A newcomer lost before its first step had received a wrong state.

        A view may be made without the newcomers that were to enter, if a member had begun the step that was agreed on.
        They keep what was streamed to them, and enter with one of the next views.
        """
        if gone := sorted(self._entered - set(members)):
            self._distrusted = f"{gone[0]} was lost right after the state was streamed to it"
        for member, stream in self._streams.items():
            self._park(member, stream)
        self._entered &= set(self._parked)  # handed over to just now
        waiting = [(member, stream) for member, stream in self._parked.items() if member not in members]
        self._parked = dict(waiting[-MOST_PARKED:])
        self._streams.clear()
        self.server.close()


def _refusal(reason: str) -> bytes:
    return _text({"kind": "refused", "why": reason})


def _text(texts: dict[str, str]) -> bytes:
    return b"".join(pieces({}, texts))
