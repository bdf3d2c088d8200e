"""A server with a replica in virtual time: kills of either process at any message, delays, workers that are lost.

The hosts, the launcher's decisions and a worker's list of unanswered requests are those of a run. Messages of one
sender to one receiver keep their order; what a killed process sent last may be lost, from any message on. A push of
member i adds one to element i, so the values themselves say how many pushes of each member they hold.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from shoal.launch.replica_roster import LeaveAlone, PromoteReplica, ReplicaOrder, ReplicaRoster, StartReplica
from shoal.launch.service_channel import ServiceView
from shoal.membership.protocol import MemberInfo
from shoal.sync.server.messages import (
    DeclareRequest,
    LeaveRoundRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    ShardReply,
    ShardRequest,
    SumReply,
    SumRequest,
    TensorSize,
    ValuesHead,
    WaitReply,
    encode,
)
from shoal.sync.server.replica_messages import EntryHeld, ReplicaHello, ReplicaWord, StateEntry
from shoal.sync.server.replicated_host import ReplicatedHost
from shoal.sync.server.request_guard import RequestGuard
from shoal.sync.server.unanswered_requests import UnansweredRequest, UnansweredRequests

NUMBERS, SUMS = 0, 1
"""Channels: of the shard, and of sums."""
Received = tuple[ShardReply, list[np.ndarray]]
Script = Generator[int, Received, None]


class SimulatedReplica:
    """One process of the server."""

    def __init__(self, world: "ReplicaWorld", start: int, backs: int | None) -> None:
        self.world, self.start, self.backs = world, start, backs
        self.dead, self.term = False, 0
        guard = {"guard": RequestGuard()} if world.linked else {}
        self.host = ReplicatedHost(self._answer, self._ship, is_primary=backs is None, **guard)

    def _answer(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        copies, term = [np.array(np.frombuffer(each, np.uint8)) for each in arrays], self.term
        worker = self.world.workers[member]
        self.world.send(self.start, member, lambda: worker.hear(term, number, reply, copies))

    def _ship(self, start: int, word: ReplicaWord, parts: Sequence[Any]) -> None:
        backup, copies = self.world.replicas[start], [bytearray(part) for part in parts]
        self.world.send(self.start, start, lambda: backup.take(word, copies))

    def take(self, word: ReplicaWord, parts: Sequence[Any]) -> None:
        """From the primary."""
        if self.dead or self.host.is_primary:
            return
        held = self.host.take(word, parts)
        if isinstance(word, StateEntry):
            self.world.roster.note_ready(self.start)
        assert self.backs is not None
        primary = self.world.replicas[self.backs]
        self.world.send(self.start, primary.start, lambda: primary.hear(self.start, held))

    def hear(self, backup: int, word: ReplicaWord) -> None:
        """From a backup."""
        if self.dead:
            return
        if isinstance(word, ReplicaHello):
            self.host.begin_backup(backup)
        elif isinstance(word, EntryHeld):
            self.host.note_held(backup, word.index)

    def request(self, term: int, member: str, number: int, oldest: int, request: UnansweredRequest) -> None:
        """From a worker, over a connection of this term."""
        if not self.dead and self.host.is_primary and term == self.term:
            self.host.request(member, number, oldest, request.head, request.arrays)


class SimulatedWorker:
    """Sends requests by number and again to whoever takes over; `script` yields the number it waits for."""

    def __init__(self, world: "ReplicaWorld", name: str, place: int) -> None:
        self.world, self.name, self.place = world, name, place
        self.term = self._number = self.acknowledged = 0
        self.lost = False
        self.pending = UnansweredRequests()
        self._numbers: dict[int, int] = {}
        self._received: dict[int, Received] = {}
        self._awaited = 0
        self._script = self._train()

    def begin(self) -> None:
        self._go_on(next(self._script))

    def ask(self, request: ShardRequest, *arrays: np.ndarray) -> int:
        self._number += 1
        self.pending.add(
            self._number, UnansweredRequest(0, request.channel, encode(request), [*map(bytearray, arrays)])
        )
        self._transmit(self._number, self.pending.list_of(0)[-1])
        return self._number

    def _transmit(self, number: int, request: UnansweredRequest) -> None:
        self._numbers[id(request)] = number
        term, oldest = self.term, self.pending.find_oldest(number)
        replica = self.world.find_primary(term)
        if replica is not None:
            action = lambda: replica.request(term, self.name, number, oldest, request)  # noqa: E731
            self.world.send(self.name, replica.start, action)

    def follow(self, term: int) -> None:
        """Another process answers: send it what has no answer, over a new connection."""
        self.term = term
        self.declare()
        for request in self.pending.list_of(0):
            self._transmit(self._numbers[id(request)], request)

    def declare(self) -> None:
        """Between hosts: say what will come, to the process that answers; again after a takeover."""
        sizes = {NUMBERS: 4 * self.world.size, SUMS: 4 * 3}
        primary = self.world.find_primary(self.term) if self.world.linked else None
        for channel, size in sizes.items() if primary is not None else ():
            primary.host.declare(self.name, DeclareRequest(channel, (TensorSize("float32", size),)))  # type: ignore[union-attr]

    def hear(self, term: int, number: int, reply: ShardReply, arrays: list[np.ndarray]) -> None:
        if self.lost or term != self.term or isinstance(reply, WaitReply) or number in self._received:
            return
        self.pending.note_answer(number)
        self._received[number] = reply, arrays
        if number == self._awaited:
            self._go_on(number)

    def _go_on(self, number: int) -> None:
        try:
            while number in self._received:
                number = self._script.send(self._received[number])
            self._awaited = number
        except StopIteration:
            self.world.finished.append(self.name)

    def _train(self) -> Script:
        world, names = self.world, list(self.world.names)
        zeros = np.zeros(world.size, np.float32)
        yield self.ask(OpenRequest(NUMBERS, "add", {}, world.bound, 1, names), zeros)
        for clock in range(world.steps):
            update = zeros.copy()
            update[self.place], update[-1] = 1, world.extra(self.place, clock)
            pushed = self.ask(PushRequest(clock), update)
            pulled = self.ask(PullRequest(clock + 1)) if world.bound is None or world.random.random() < 0.7 else None
            reply, _ = yield pushed
            assert isinstance(reply, PushReply)
            assert reply.outcome == "APPLIED", "a push was handled twice"
            self.acknowledged += 1
            if pulled is not None:
                world.check_values(self, clock + 1, *(yield pulled))
            if world.sums:
                total = np.full(3, 10**self.place, np.float32)
                summed = self.ask(SumRequest(1, SUMS, 0, clock + 1, names, "float32"), total)
                world.check_sum(*(yield summed))
        left = self.ask(LeaveRoundRequest(NUMBERS))
        if world.random.random() < 0.5:
            self.pending.forget(left)
        else:
            yield left
        world.met.append(self)
        yield 0  # until all have met
        asked = RoundRequest(NUMBERS, 1, 1 + len(world.lost), [each.name for each in world.met])
        world.check_round(*(yield self.ask(asked)))


class ReplicaWorld:
    """One run. `kills`: processes of the server that are killed."""

    def __init__(self, seed: int, linked: bool = False) -> None:
        """`linked`: between hosts, where servers believe the launcher about members, and no third process comes."""
        self.random, self.linked = random.Random(seed), linked
        self.bound = self.random.choice([None, 0, 1, 2])
        self.sums = self.bound != 0 and self.random.random() < 0.4
        self.steps, count = self.random.randint(2, 4), self.random.randint(1, 3)
        self.names = [f"w{number}.0" for number in range(count)]
        self.size, self.now, self._ids = count + 1, 0.0, itertools.count()
        self._events: list[list[Any]] = []
        self._quiet: dict[tuple[Any, Any], float] = {}
        replacements = 0 if linked else self.random.choice([1, 9, 9, 9])
        self.roster, self.replicas = ReplicaRoster(replacements), dict[int, SimulatedReplica]()
        self.workers = {name: SimulatedWorker(self, name, place) for place, name in enumerate(self.names)}
        self.finished: list[str] = []
        self.met: list[SimulatedWorker] = []
        self.lost: list[SimulatedWorker] = []
        self.killed = 0
        self._kills = sorted(self.random.sample(range(8, 200), self.random.randint(1, 9)))
        loses = count > 1 and not self.sums and self.random.random() < 0.3
        self._loses = self.random.randint(12, 120) if loses else None
        for order in self.roster.begin():
            self._obey(order)

    def run(self) -> "ReplicaWorld":
        self._later(10.0 if self.linked else 1.0, self._begin)  # between hosts not before the backup is ready
        handled = 0
        while self._events:
            self.now, *_, action = heapq.heappop(self._events)
            handled += 1
            if self._kills and handled >= self._kills[0]:
                self._kills.pop(0)
                self._kill()
            if handled == self._loses:
                self._lose()
            action()
            self._meet()
        return self

    def _begin(self) -> None:
        self._say_view()
        for worker in self.workers.values():
            worker.declare()
        for worker in self.workers.values():
            worker.begin()

    def _say_view(self) -> None:
        """The launcher's word, which the backup takes from the log, and itself once it has taken over."""
        primary = self.find_primary(self.roster.term) if self.linked else None
        if primary is not None:
            members = tuple(worker.name for worker in self.workers.values() if not worker.lost)
            primary.host.follow(ServiceView(1 + len(self.lost), members, tuple(MemberInfo() for _ in members)))

    def extra(self, place: int, clock: int) -> int:
        return (7 * place + 3 * clock) % 11 - 5

    # what happens

    def _later(self, seconds: float, action: Callable[[], Any], sender: Any = None, receiver: Any = None) -> None:
        heapq.heappush(self._events, [self.now + seconds, next(self._ids), sender, receiver, action])

    def send(self, sender: Any, receiver: Any, action: Callable[[], Any]) -> None:
        """Over a link, which keeps the order."""
        quiet = max(self._quiet.get((sender, receiver), 0.0), self.now + self.random.uniform(0.01, 1))
        self._quiet[sender, receiver] = quiet
        self._later(quiet - self.now, action, sender, receiver)

    def find_primary(self, term: int) -> SimulatedReplica | None:
        """Whom a connection of this term reaches; None: nobody any more."""
        primary = self.replicas[self.roster.primary]
        return primary if term == self.roster.term and not primary.dead else None

    def _kill(self) -> None:
        """Kill either process; the primary only when the launcher knows that its backup has the state."""
        roster = self.roster
        targets = [roster.primary] if roster.is_ready else []
        if not roster.is_alone and roster.backup in self.replicas:
            targets.append(roster.backup)
        living = [self.replicas[each] for each in targets if not self.replicas[each].dead]
        if not living or any(self.replicas[each].dead for each in targets):
            return  # its end has not been noticed yet
        victim = self.random.choice(living)
        victim.dead, self.killed = True, self.killed + 1
        self._lose_last_words(victim.start)
        self._later(self.random.uniform(0, 0.5), lambda: self._notice(victim.start))

    def _lose_last_words(self, start: int) -> None:
        """What had not left its memory, to each receiver from any message on."""
        for receiver in {event[3] for event in self._events if event[2] == start}:
            mine = sorted(event for event in self._events if event[2] == start and event[3] == receiver)
            for event in mine[self.random.randint(0, len(mine)) :]:
                event[4] = lambda: None

    def _notice(self, start: int) -> None:
        for order in self.roster.note_end(start):
            self._obey(order)
        assert not self.roster.is_lost

    def _obey(self, order: ReplicaOrder) -> None:
        if isinstance(order, StartReplica):
            self._start(order)
        elif isinstance(order, LeaveAlone):
            self.replicas[order.start].host.go_alone()
        elif isinstance(order, PromoteReplica):
            replica = self.replicas[order.start]
            replica.host.promote()
            replica.term = order.term
            self._say_view()
            for worker in self.workers.values():
                self._later(self.random.uniform(0, 1), lambda worker=worker: self._tell(worker, order.term))

    def _tell(self, worker: SimulatedWorker, term: int) -> None:
        if term > worker.term and not worker.lost:
            worker.follow(self.roster.term)

    def _start(self, order: StartReplica) -> None:
        replica = self.replicas[order.start] = SimulatedReplica(self, order.start, order.backs)
        if order.backs is not None:
            primary = self.replicas[order.backs]

            def greet() -> None:
                if not replica.dead:
                    self.send(replica.start, primary.start, lambda: primary.hear(replica.start, ReplicaHello()))

            self._later(self.random.uniform(0, 2), greet)

    def _lose(self) -> None:
        """A worker is lost before it has met the others, who go on in another view."""
        candidates = [worker for worker in self.workers.values() if worker not in self.met and not worker.lost]
        if self.met or len(candidates) < 2 or not all(worker._number > 1 for worker in candidates):
            return
        worker = self.random.choice(candidates)
        worker.lost = True
        self.lost.append(worker)
        staying = [each for each in self.workers.values() if not each.lost]
        self._later(self.random.uniform(0, 1), self._say_view)
        request = RoundRequest(NUMBERS, 0, 2, [each.name for each in staying])
        for each in staying:
            each.pending.forget(each.ask(request))

    def _meet(self) -> None:
        if self.met and len(self.met) + len(self.lost) == len(self.names) and len(self.finished) == 0:
            met, self.met = self.met, sorted(self.met, key=lambda worker: worker.place)
            for worker in met:
                worker._received[0] = (SumReply(), [])
            for worker in met:
                if worker._awaited == 0:
                    worker._awaited = -1
                    worker._go_on(0)

    # what must hold

    def check_values(self, worker: SimulatedWorker, clock: int, reply: ShardReply, arrays: list[np.ndarray]) -> None:
        """Own pushes are in the values, and others' up to the staleness bound."""
        assert isinstance(reply, ValuesHead)
        values = arrays[0].view(np.float32)
        assert values[worker.place] == clock or self.bound == 0
        if self.bound is not None:
            assert all(values[each.place] >= clock - self.bound for each in self.workers.values() if not self.lost)

    def check_sum(self, reply: ShardReply, arrays: list[np.ndarray]) -> None:
        assert isinstance(reply, SumReply)
        assert arrays[0].view(np.float32).tolist() == [sum(10**place for place in range(len(self.names)))] * 3

    def check_round(self, reply: ShardReply, arrays: list[np.ndarray]) -> None:
        """Every acknowledged push is in the values, and every push at most once."""
        assert isinstance(reply, RoundReply)
        made = {worker.place: self.steps for worker in self.workers.values() if not worker.lost}
        for worker in self.lost:
            made[worker.place] = counted = reply.counted.get(worker.name, 0)
            assert counted >= worker.acknowledged, "an acknowledged push is lost"
        values = np.zeros(self.size)
        for place, count in made.items():
            values[place] = count
            values[-1] += sum(self.extra(place, clock) for clock in range(count))
        assert arrays[0].view(np.float32).tolist() == values.tolist()
