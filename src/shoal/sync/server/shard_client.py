"""What one worker asks of the servers for one join: heads, arrays, and the clocks of both sides.

    open(…), open_shards(view, values)     once; the values of the first worker that asks are the shards'
    send_push(…), send_pulls()             leave at once, to all servers
    take_outcomes(), take_pulled(…)        wait for the replies; what pulls bring is in `payloads.flat`
    leave_round(), begin_round(view)       between two rounds

Server 0 is asked last, because its word counts: it keeps the account of samples.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.membership.session import MembershipSession
from shoal.membership.view import MembershipView
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.messages import (
    LeaveRoundRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    ShardReply,
    ValuesHead,
    read_outcome,
)
from shoal.sync.server.payloads import PackedPush, ShardPayloads
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.trained import TrainedSamples, check_trained

RoundMessage = RoundRequest | LeaveRoundRequest


class ShardClient:
    """Used by the training thread."""

    def __init__(self, servers: ServerConnection, pace: ServerPace, payloads: ShardPayloads) -> None:
        self.servers, self.pace, self.payloads = servers, pace, payloads
        self.channel = servers.take_channel()
        self.told: MembershipView | None = None
        """The newest view that the servers were told of by this worker."""
        self.versions = [0] * len(servers)
        """Of each server: updates in the values held here, and this worker's own since."""
        self.round = self.clock = self.minimum = 0
        self.kept: dict[str, int] = {}
        """Of members that were lost in the last round: how many of their pushes count."""
        self.samples_kept: dict[str, list[TrainedSamples]] = {}
        """The leased samples of those pushes."""
        self._pushes: dict[int, int] = {}
        """Server -> number of the push under way."""

    @property
    def staleness(self) -> int:
        """Clocks that the slowest member is behind in the values held here."""
        return self.clock - self.minimum

    def open(self, session: MembershipSession, names: Sequence[str], parameters: Sequence[Tensor]) -> None:
        self._session = session
        self.payloads.open(names, parameters, len(self.servers), self.servers.allocate)
        self.servers.declare(self.channel, self.payloads.declare())

    def open_shards(self, view: MembershipView, parameters: Sequence[Tensor]) -> None:
        """The values of all workers are equal here, so any worker's may be the shards' first."""
        facts = (self.channel, self.pace.rule, self.pace.settings, self.pace.bound, view.generation)
        values = self.payloads.copy_values([p.detach() for p in parameters])
        request = OpenRequest(*facts, list(view.members), self.pace.deadline, by_host=self.pace.by_host)
        landings = self.payloads.landings
        numbers = {
            server: self.servers.send(server, request, values[server], landings[server]) for server in self._from_last()
        }
        for server, (reply, arrays) in enumerate(self._replies(numbers, RoundReply)):
            assert isinstance(reply, RoundReply)
            self._take_round(server, reply, arrays)
        self.told = view

    def tell(self, view: MembershipView) -> None:
        """Name the members of the newest view; nobody waits for one that is not among them."""
        self.told = view
        self._say(self._round_request(view, self.round, values=False))

    def _round_request(self, view: MembershipView, number: int, values: bool = True) -> RoundRequest:
        return RoundRequest(self.channel, number, view.generation, list(view.members), values)

    def take_over(self, view: MembershipView) -> None:
        """Go on in the round that is open, as another worker of this host would: from what the servers know."""
        self.told = view
        self._take_rounds(self._send_all(self._round_request(view, self.round)))

    def _say(self, request: RoundMessage) -> None:
        """Without waiting for what the servers reply."""
        for number in self._send_all(request).values():
            self.servers.forget(number)

    def send_push(
        self,
        updates: Sequence[Tensor],
        weight: float,
        trained: list[TrainedSamples],
        among: Sequence[str] = (),
        since: Sequence[Tensor] = (),
    ) -> None:
        """`among`: the workers of this host whose changes are in it, where hosts push together. `since`: what is pushed
        is the change from these to `updates`."""
        packed = self.payloads.pack(updates, weight, since)
        self._pushes = {
            server: self.servers.send(
                server, self._push_request(server, packed[server], trained, among), packed[server].arrays
            )
            for server in self._from_last()
        }
        self.clock += 1

    def _push_request(
        self, server: int, push: PackedPush, trained: list[TrainedSamples], among: Sequence[str]
    ) -> PushRequest:
        version = self.versions[server] if self.pace.adaptive else None
        return PushRequest(self.clock, push.weight, self.channel, trained, version, push.is_finite, among=list(among))

    def take_outcomes(self) -> set[PushOutcome]:
        """Wait until the last push is counted everywhere."""
        found = [
            _read_outcome(server, reply) for server, (reply, _) in enumerate(self._replies(self._pushes, PushReply))
        ]
        self.versions = [v + (o is PushOutcome.APPLIED) for v, o in zip(self.versions, found, strict=True)]
        return set(found)

    def send_pulls(self) -> dict[int, int]:
        """Return the number of the request at each server."""
        numbers = {}
        for server in self._from_last():
            request = PullRequest(self.clock, self.channel, self.payloads.held(server))
            numbers[server] = self.servers.send(server, request, landing=self.payloads.landings[server])
        return numbers

    def take_pulled(self, numbers: dict[int, int]) -> set[str]:
        """Take in the newest values; return the members that they had to wait for."""
        minima = []
        for server, (reply, arrays) in enumerate(self._replies(numbers, ValuesHead)):
            assert isinstance(reply, ValuesHead)
            minima.append(reply.minimum)
            self.versions[server] = reply.version
            self.payloads.take(server, reply, arrays)
        # servers count by themselves, so the stalest shard decides
        self.minimum = min(minima)
        return {each for number in numbers.values() for each in self.servers.take_slowest(number)}

    def leave_round(self) -> None:
        """Nobody waits for this worker's clock any more."""
        self._say(LeaveRoundRequest(self.channel))

    def begin_round(self, view: MembershipView, values: bool = True) -> None:
        """Take the values that all begin the next round with, and what the servers counted of lost members. `values`:
        False: another worker of this host takes them."""
        self._take_rounds(self._send_all(self._round_request(view, self.round + 1, values)), values)
        # a wait in between may have told servers of a newer view
        if self.told is None or view.generation > self.told.generation:
            self.told = view

    def follow_round(self, view: MembershipView) -> None:
        """Enter the round that is open, whose values another worker of this host has taken."""
        self._take_rounds(self._send_all(self._round_request(view, self.round, values=False)), values=False)
        self.told = view

    def _take_rounds(self, numbers: dict[int, int], values: bool = True) -> None:
        for server, (reply, arrays) in enumerate(self._replies(numbers, RoundReply)):
            assert isinstance(reply, RoundReply)
            if server == 0:  # the home of the samples: what it has counted is trained on
                self.kept, self.samples_kept = reply.counted, reply.trained
                for trained in reply.trained.values():
                    check_trained(trained)
            self._take_round(server, reply, arrays, values)

    def _take_round(self, server: int, reply: RoundReply, arrays: Sequence[memoryview], values: bool = True) -> None:
        self.round, self.clock, self.minimum = reply.round, reply.clock, reply.clock
        self.versions[server] = reply.version
        if values:
            self.payloads.take_all(server, reply.version, arrays)

    def _from_last(self) -> Iterator[int]:
        # server 0 keeps the account of samples, so what it counts has left for all others before
        return reversed(range(len(self.servers)))

    def _send_all(self, request: RoundMessage) -> dict[int, int]:
        """Return the number of the request at each server."""
        places = self.payloads.landings if isinstance(request, RoundRequest) and request.values else []
        landings = dict(enumerate(places))
        return {server: self.servers.send(server, request, (), landings.get(server)) for server in self._from_last()}

    def _replies(self, numbers: dict[int, int], kind: type) -> Iterator[tuple[ShardReply, list[memoryview]]]:
        for server in range(len(self.servers)):
            reply, arrays = self.servers.wait(server, numbers[server], self._look)
            if not isinstance(reply, kind):
                raise PayloadError(f"server {server} answers with {type(reply).__name__} instead of {kind.__name__}")
            yield reply, arrays

    def _look(self) -> None:
        """In a wait: a member that is lost meanwhile is not waited for."""
        newest = self._session.newest_view
        is_newer = self.told is not None and newest.generation > self.told.generation
        if is_newer and self._session.member in newest:
            self.tell(newest)


def _read_outcome(server: int, reply: ShardReply) -> PushOutcome:
    assert isinstance(reply, PushReply)
    return read_outcome(reply, f"server {server}")
