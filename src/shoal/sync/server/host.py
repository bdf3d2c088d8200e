"""What one server process hosts: a shard for every join, and sums; a state machine without a socket.

    handle(member, number, head, arrays)    `number` comes back with the reply, which may come much later

Requests of one member are handled in the order it sent them. A pull that has to wait is answered at once with whom it
waits for (WaitReply), and with the values as soon as the staleness bound allows.

A round is what lies between two meetings of all members (`synchronizer.py`). When the first member says that the next
round begins, all pushes of the one before have been made: the shard then keeps a copy of its values, so that all
members begin with the same bits, and sets the clocks of all members to the same number. What a lost member's pushes
came to is frozen when the server hears of the view without it. Between hosts a `RequestGuard` says what is believed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shoal.core.clock import now
from shoal.core.errors import PayloadError, ShoalError
from shoal.launch.service_channel import ServiceView
from shoal.sync.server.deadline_shard import DeadlineShard, StepTimer
from shoal.sync.server.host_snapshot import HostSnapshot
from shoal.sync.server.hosted_shard import HostedShard
from shoal.sync.server.hosted_sums import HostedSums
from shoal.sync.server.hosted_table import HostedTable
from shoal.sync.server.messages import (
    DeclareRequest,
    FailedReply,
    HeardReply,
    LeaveRoundRequest,
    OpenRequest,
    OpenShardRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    ShardReply,
    ShardRequest,
    SumReply,
    SumRequest,
    WaitReply,
    WatchRequest,
    WhoRequest,
    decode_request,
)
from shoal.sync.server.request_guard import EarlyRequest, RequestGuard
from shoal.sync.server.shard_codec import FloatReader, make_reader
from shoal.sync.server.shard_state import PushOutcome
from shoal.wire.codec import GradientCodec

MOST_NAMED = 8
"""Members that a reply names as those waited for."""

SHORTEST_LOOK = 0.02
"""Seconds: a server does not look more often whether a step has begun."""

Send = Callable[[str, int, ShardReply, Sequence[Any]], None]
"""(member, number of its request, reply, arrays)"""


class ShardHost:
    """Used by one thread at a time."""

    def __init__(
        self,
        send: Send,
        guard: RequestGuard | None = None,
        accuse: Callable[[str, str], None] = lambda member, why: None,
        codec: GradientCodec | None = None,
        clock: Callable[[], float] = now,
        shares: bool = False,
    ) -> None:
        """`guard`: None where all members are this user's own. `accuse`: this member was refused, and why. `codec`: of
        pushes, by the plan. `clock`: for deadlines of steps. `shares`: members write to what they sent again once they
        are answered, and `send` copies what it is given before it returns."""
        self._send, self._guard, self._accuse, self._codec = send, guard, accuse, codec
        self._shares = shares
        self._clock = clock
        self._timers: dict[int, StepTimer] = {}
        """Of the shards whose steps have a deadline."""
        self._shards: dict[int, HostedShard] = {}
        self._sums = HostedSums()

    def handle(self, member: str, number: int, head: bytes, arrays: Sequence[Any]) -> None:
        """Do what a member asks; what is wrong with its request is told to it in the reply."""
        try:
            request = decode_request(head, member)
            if self._guard is not None:
                self._guard.check(member, request, arrays)
                if self._guard.is_early(member, request, self._rounds):
                    self._guard.keep(EarlyRequest(member, number, request, arrays))
                    return
        except ShoalError as error:
            self._refuse(member, number, error)
            return
        self._try(member, number, request, arrays)
        # this request may have begun the round that early ones wait for
        self._handle_due()
        self.seconds_left(0.0)  # a step that has begun with this request has its time from now on

    def seconds_left(self, most: float) -> float:
        """How long nothing but requests has to be looked after, `most` at the most; then `take_overdue`."""
        moment, soonest = self._clock(), most
        for timer in self._timers.values():
            left = timer.seconds_left(moment)
            # where another thread hands requests in, a step may begin any moment, and is over no sooner than this
            soonest = min(soonest, max(SHORTEST_LOOK, timer.shard.terms.seconds) if left is None else left)
        return soonest

    def take_overdue(self) -> None:
        """Take the steps whose deadline is over with what has come."""
        for channel, step in self.find_overdue():
            self.expire(channel, step)

    def find_overdue(self) -> list[tuple[int, int]]:
        """Channel and step of those whose deadline is over."""
        moment = self._clock()
        return [(n, t.shard.state.round) for n, t in self._timers.items() if t.seconds_left(moment) == 0.0]

    def expire(self, channel: int, step: int) -> None:
        """Take a step with what has come: its deadline is over, here or where this host's requests are from."""
        if (timer := self._timers.get(channel)) is not None:
            timer.shard.expire(step)
            self._release(self._shards[channel])

    def follow(self, view: ServiceView) -> None:
        """Go on with the members that the launcher names: nobody waits for others."""
        assert self._guard is not None
        self._guard.view = view
        for hosted in self._shards.values():
            hosted.follow(view.generation, view.members, view.hosts)
            # pulls may have waited for lost members alone
            self._release(hosted)
        self._sums.follow(view.generation)
        # requests that named this view before the launcher did may be judged now
        self._handle_due()

    def declare(self, member: str, request: DeclareRequest) -> bool:
        """Take the sizes of a channel; whether they are new."""
        assert self._guard is not None
        return self._guard.declare(member, request)

    def take_snapshot(self) -> HostSnapshot:
        """What a replica needs to go on as this host would; arrays are still this host's own."""
        return HostSnapshot(dict(self._shards), *self._sums.take_snapshot())

    def restore(self, snapshot: HostSnapshot) -> None:
        """Go on from what another host remembered."""
        self._shards = dict(snapshot.shards)
        # a snapshot has no times: the step that is open gets its whole time again
        self._timers = {n: StepTimer(h.shard) for n, h in self._shards.items() if isinstance(h.shard, DeadlineShard)}
        self._sums.restore(snapshot.sums, snapshot.generation, snapshot.waiting)

    @property
    def _rounds(self) -> dict[int, int]:
        return {channel: hosted.round for channel, hosted in self._shards.items()}

    def _handle_due(self) -> None:
        while self._guard is not None and self._guard.early and (due := self._guard.take_due(self._rounds)):
            for each in due:
                try:
                    # the members it named were of a view that was not known then
                    self._guard.check(each.member, each.request, each.arrays)
                except ShoalError as error:
                    self._refuse(each.member, each.number, error)
                else:
                    self._try(each.member, each.number, each.request, each.arrays)

    def _try(self, member: str, number: int, request: ShardRequest, arrays: Sequence[Any]) -> None:
        try:
            self._handle(member, number, request, arrays)
        except ShoalError as error:
            self._refuse(member, number, error)
        except Exception as error:  # noqa: BLE001  (a request that nobody foresaw is its author's fault alone)
            self._refuse(member, number, ShoalError(f"{type(error).__name__}: {error}"))

    def _refuse(self, member: str, number: int, error: ShoalError) -> None:
        self._accuse(member, str(error))
        # a FailedReply carries at most 1024 characters
        self._send(member, number, FailedReply(str(error)[:1024]), [])

    def _handle(self, member: str, number: int, request: ShardRequest, arrays: Sequence[Any]) -> None:
        if isinstance(request, SumRequest):
            self._sum(member, number, request, arrays)
        elif isinstance(request, WhoRequest):
            self._tell_slowest(member, request)
        elif isinstance(request, OpenRequest):
            self._open(member, number, request, arrays)
        else:
            self._serve(member, number, request, arrays)

    def _tell_slowest(self, member: str, request: WhoRequest) -> None:
        """Whom a pull or a sum waits for; nothing if it does not wait here."""
        hosted = self._shards.get(request.channel)
        names: list[str] = []
        # the request may have been answered while the question was under way
        if hosted is not None and hosted.pulls.get(hosted.clock_of(member)) == (member, request.number):
            names = hosted.find_slowest(hosted.clock_of(member))
        if names := names or self._sums.find_missing(member, request.number):
            self._send(member, request.number, WaitReply(names[:MOST_NAMED]), [])

    def _serve(self, member: str, number: int, request: OpenShardRequest, arrays: Sequence[Any]) -> None:
        hosted = self._shards.get(request.channel)
        if hosted is None:
            raise PayloadError(f"{member} asks for shard {request.channel}, which nobody has opened")
        if isinstance(request, RoundRequest):
            self._follow(hosted, request)
            hosted.begin(request.round)
            self._tell_round(member, number, hosted, request.values)
        elif isinstance(request, LeaveRoundRequest):
            hosted.leave(member)
            self._send(member, number, HeardReply(), [])
        elif isinstance(request, PushRequest):
            self._push(member, number, hosted, request, arrays)
        elif isinstance(request, WatchRequest):
            # answered by `_release` below, at once if there are so many updates already
            hosted.watches.append((member, number, request.version))
        elif isinstance(request, PullRequest):
            self._pull(member, number, hosted, request, arrays)
        elif isinstance(hosted, HostedTable):
            self._send(member, number, *hosted.serve_checkpoint(member, request, arrays))
        else:
            raise PayloadError(f"{member} asks for rows of shard {request.channel}, which is no table")
        # whatever was asked, pulls of others may be ready now
        self._release(hosted)

    def _follow(self, hosted: HostedShard, request: OpenRequest | RoundRequest) -> None:
        hosts = None if self._guard is None else self._guard.view.hosts
        hosted.follow(request.generation, request.members, hosts)

    def _open(self, member: str, number: int, request: OpenRequest, arrays: Sequence[Any]) -> None:
        hosted = self._shards.get(request.channel)
        if request.table is None and not isinstance(hosted, HostedTable):
            hosted = self._open_values(member, request, arrays)
        elif hosted is None:
            hosted = self._shards[request.channel] = HostedTable.open_table(request)
        elif (request.table, request.rule) != (hosted.opened.table, hosted.opened.rule):
            raise PayloadError(f"{member} opens shard {request.channel} otherwise than others; it runs another model")
        self._follow(hosted, request)
        hosted.enter(member)
        self._tell_round(member, number, hosted)
        self._release(hosted)

    def _open_values(self, member: str, request: OpenRequest, arrays: Sequence[Any]) -> HostedShard:
        # only pushes are coded; first values come as they are
        values = FloatReader().read(member, arrays[:1], True)
        reader = make_reader(self._codec, member, arrays[1:], values.size)
        hosted = self._shards.get(request.channel)
        if hosted is None:
            hosted = self._shards[request.channel] = HostedShard.open(request, values, reader)
            hosted.share(self._shares)
            if isinstance(hosted.shard, DeadlineShard):
                self._timers[request.channel] = StepTimer(hosted.shard)
        # the first member's values are the shard's; of the others' only the sizes must fit
        elif hosted.start.size != values.size:
            raise PayloadError(
                f"{member} opens shard {request.channel} with {values.size} elements; it has {hosted.start.size}"
            )
        elif hosted.reader.layout != reader.layout:
            raise PayloadError(f"{member} opens shard {request.channel} with other parts; it runs another model")
        return hosted

    def _tell_round(self, member: str, number: int, hosted: HostedShard, values: bool = True) -> None:
        clock = hosted.shard.state.clocks.get(hosted.clock_of(member))
        if clock is None:
            raise PayloadError(f"{member} is not in the view of generation {hosted.generation}, or was quarantined")
        reply = RoundReply(hosted.round, clock, hosted.lost_before, hosted.trained_before, hosted.version)
        self._send(member, number, reply, [hosted.start] if values else [])

    def _push(self, member: str, number: int, hosted: HostedShard, request: PushRequest, arrays: Sequence[Any]) -> None:
        outcome = hosted.shard.push(hosted.read_push(member, request, arrays))
        hosted.note_pushed(request, outcome)
        if outcome is PushOutcome.QUARANTINED:  # it has no clock any more, and what it pushed before is in the values
            hosted.lost.setdefault(member, request.clock + 1 - hosted.base)
        self._send(member, number, PushReply(outcome.name), [])

    def _pull(self, member: str, number: int, hosted: HostedShard, request: PullRequest, arrays: Sequence[Any]) -> None:
        # noted now, because a pull that has to wait is answered without its request
        hosted.want(member, request, arrays)
        clock = hosted.clock_of(member)
        found = hosted.shard.pull(clock, request.clock)
        if found is not None:
            self._send(member, number, *hosted.write_values(found))
            return
        if clock not in hosted.shard.state.clocks:
            raise PayloadError(f"{member} is not in the view of generation {hosted.generation}, or was quarantined")
        hosted.pulls[clock] = member, number
        self._send(member, number, WaitReply(hosted.find_slowest(clock)[:MOST_NAMED]), [])

    def _release(self, hosted: HostedShard) -> None:
        for member, number in hosted.take_watches():
            self._send(member, number, HeardReply(), [])
        for found in hosted.shard.release():
            self._send(*hosted.pulls.pop(found.member), *hosted.write_values(found))

    def _sum(self, member: str, number: int, request: SumRequest, arrays: Sequence[Any]) -> None:
        oldest = None if self._guard is None else self._guard.view.generation
        due, total = self._sums.add(member, number, request, arrays, oldest)
        for each, asked in due.items():
            self._send(each, asked, SumReply(), [total])
