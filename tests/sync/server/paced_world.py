"""Workers of given speeds against one server, in virtual time: the worker's own synchronizer, the server's own host.

What is trained is least squares with plain SGD. The same seed gives the same run.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from virtual_servers import VirtualConnection, VirtualTime

from shoal.data.allocate.leased import LeaseQueue, LeaseTerms
from shoal.data.remaining import RemainingSamples
from shoal.membership.lease_book import LeaseBook
from shoal.membership.lease_client import LeaseClient
from shoal.membership.session import FixedSession, member_name
from shoal.sync.exchange.none import NoExchange
from shoal.sync.server.deadline_steps import DeadlineStepsSynchronizer
from shoal.sync.server.host import ShardHost
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.synchronizer import EqualWeights, Part, StepAction
from shoal.sync.trained import TrainedSamples
from shoal.train.served_synchronizers import choose_kind

SAMPLES, FEATURES, BATCH = 512, 16, 8
FORWARD = 1 / 3
"""Of a step's seconds: its forward pass, where that may be made again."""
Seconds = Callable[[int, int], float]
"""(rank, step) -> how long it computes."""


class VirtualMeeting:
    """In the place of the round of averages: all wait for all."""

    words = (1.0, 0.0, 0.0)

    def __init__(self, world: "PacedWorld", session: FixedSession) -> None:
        self._world, self.view = world, session.view

    def mean(self, *what: object) -> None:
        self._world.meet()


class LeasedWeights(EqualWeights):
    """All count alike, and say which leased samples a step was made of."""

    def __init__(self, worker: "PacedWorker") -> None:
        super().__init__(worker.session)
        self._worker = worker

    def leased_from(self, place: int) -> list[TrainedSamples]:
        return [TrainedSamples((0, 0, 0), list(ranges)) for ranges in self._worker.given[place:]]


class PacedWorker:
    """Trains on the values it holds; `made`: its steps."""

    def __init__(self, world: "PacedWorld", rank: int) -> None:
        self.world, self.rank, self.made = world, rank, 0
        self.session = FixedSession(rank, world.size)
        self.values = torch.nn.Parameter(torch.zeros(FEATURES))
        self.optimizer = torch.optim.SGD([self.values], lr=world.rate)
        self.servers = VirtualConnection(world.time, self.session.member, world.host.handle, world.delay)
        kind = DeadlineStepsSynchronizer if world.pace.deadline is not None else choose_kind(world.pace)
        self.sync = kind(NoExchange(), self.servers, world.pace, world.round)  # type: ignore[arg-type]
        self.given: list[Any] = []
        """Batches of this round."""
        self.client = LeaseClient(world.carry, lambda: None)

    def open(self) -> None:
        part = Part(["values"], [self.values], self.session, weights=LeasedWeights(self))
        part.optimizers = [self.optimizer]
        self.sync.open(part)
        self.sync._rounds = VirtualMeeting(self.world, self.session)  # type: ignore[assignment]

    def step(self, places: Sequence[int]) -> None:
        if self.world.loading:
            self.world.time.sleep(self.world.loading)
            self.sync.before_forward()
        action = self.sync.before_step(self.optimizer)
        self.world.step_began(self)
        self._compute(self.world.seconds(self.rank, self.made))
        chosen = torch.tensor([self.world.order[place % SAMPLES] for place in places])
        inputs, labels = self.world.inputs[chosen], self.world.labels[chosen]
        self.values.grad = 2 * inputs.T @ (inputs @ self.values.detach() - labels) / len(places)
        if action is StepAction.LOCAL:
            self.optimizer.step()
        self.made += 1
        self.sync.after_step(self.optimizer)
        self.world.stepped(self)

    def _compute(self, seconds: float) -> None:
        if not self.sync.restarts_forwards:
            self.world.time.sleep(seconds)
            return
        self.sync.before_forward()
        self.world.time.sleep(FORWARD * seconds)
        if self.sync.forward_ended():
            self.world.time.sleep(FORWARD * seconds)
        self.world.time.sleep((1 - FORWARD) * seconds)

    def train_dealt(self, steps: int, leaves: bool = True) -> None:
        """As many steps as everybody makes; `leaves`: or else it dies."""
        for number in range(self.rank, steps * self.world.size, self.world.size):
            if self.world.done:
                break
            self.step(range(number * BATCH, (number + 1) * BATCH))
        if leaves:
            self.sync.leave_round()

    def train_leased(self, batches: int) -> None:
        """As many of all batches as it leases."""
        terms = LeaseTerms((0, 0, 0), batches * BATCH, BATCH, self.world.round)
        began, left = 0, RemainingSamples()
        queue = LeaseQueue(self.client, self.session.member, terms, began, left, 60.0)
        self.sync.leased = True
        self.world.meet()  # the book waits until all have said what they hold
        while queue.remains:
            lease = queue.next()
            if lease is None or lease.due > queue.ordinal:
                self.sync.leave_round()
                self.world.trained += self._used()
                self.world.meet()
                self.sync.close_round()
                began, left = self.world.close_leases(began)
                queue.close(began, left)
            if lease is not None and lease.due >= queue.ordinal:
                self._train(queue, lease)

    def _used(self) -> list[Any]:
        """What the steps of the round that is being closed were made of, but for those that came to nothing."""
        given, self.given = self.given, []
        unused = self.sync.unused_batches
        return [each for place, ranges in enumerate(given) if place not in unused for each in ranges]

    def _train(self, queue: LeaseQueue, lease: Any) -> None:
        queue.delivered(lease)
        self.given.append(lease.ranges)
        self.step([place for begin, end in lease.ranges for place in range(begin, end)])


class PacedWorld:
    """`seconds`: of a worker's step; `steps`: of a round; `target`: the loss at which training ends, if any."""

    def __init__(
        self,
        pace: ServerPace,
        size: int,
        seconds: Seconds,
        rate: float = 0.02,
        steps: int = 100,
        target: float = 0.0,
        seed: int = 0,
        delay: float = 0.0,
        loading: float = 0.0,
    ) -> None:
        """`delay`: of every reply of the server. `loading`: seconds between two steps."""
        self.pace, self.size, self.seconds, self.rate = pace, size, seconds, rate
        self.delay, self.loading = delay, loading
        self.round, self.target = steps, target
        source = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=source) * torch.logspace(0, -0.7, FEATURES)
        noise = 0.01 * torch.randn(SAMPLES, generator=source)
        self.labels = self.inputs @ torch.randn(FEATURES, generator=source) + noise
        self.order = torch.randperm(SAMPLES, generator=source).tolist()
        self.time, self.book = VirtualTime(), LeaseBook()
        self.host = ShardHost(
            lambda member, *reply: self.workers[member].servers.hear(*reply), clock=lambda: self.time.now
        )
        self.trained: list[Any] = []
        self._training = 0
        """Workers."""
        self.counted = 0
        """Samples that rounds have counted."""
        self.widest = 0
        """Steps that a worker was ahead of the slowest when it began one."""
        self._met: list[threading.Semaphore] = []
        self._left: dict[int, RemainingSamples] = {0: RemainingSamples()}
        self.made, self.ended, self.done = 0, 0.0, False
        self.workers = {member_name(rank): PacedWorker(self, rank) for rank in range(size)}
        for worker in self.workers.values():
            worker.open()

    def run(self, train: Callable[[PacedWorker], None]) -> "PacedWorld":
        for worker in self.workers.values():
            self.time.start(lambda worker=worker: self._let_train(train, worker))
        if self.pace.deadline is not None:
            self.time.start(self._look_at_deadlines)
        self.time.run()
        assert not self._met, "a worker waits for others that have ended"
        return self

    def _let_train(self, train: Callable[[PacedWorker], None], worker: PacedWorker) -> None:
        self._training += 1
        train(worker)
        self._training -= 1

    def _look_at_deadlines(self) -> None:
        """As a server's process does."""
        while self._training:
            self.time.sleep(self.host.seconds_left(0.05))
            self.host.take_overdue()

    def step_began(self, worker: PacedWorker) -> None:
        clocks = self.host._shards[0].shard.state.clocks
        self.widest = max(self.widest, clocks[worker.session.member] - self.host._shards[0].shard.minimum)

    def stepped(self, worker: PacedWorker) -> None:
        """A push has been counted."""
        if not self.done:
            self.made, self.ended = self.made + 1, self.time.now
            self.done = bool(self.target) and self.loss() <= self.target

    def loss(self) -> float:
        values = torch.from_numpy(self.host._shards[0].shard.state.values)
        return float((self.inputs @ values - self.labels).square().mean())

    def meet(self) -> None:
        self._met.append(threading.Semaphore(0))
        if len(self._met) < self.size:
            self.time.park(self._met[-1])
            return
        for turn in self._met[:-1]:
            self.time.wake(turn)
        self._met = []

    def close_leases(self, began: int) -> tuple[int, RemainingSamples]:
        """Count what all have trained in the round that began at this step: the first who comes does it for all."""
        number = began + self.round
        if number not in self._left:
            self._left[number] = self._left[began].take_out(self.trained)
            self.counted += sum(end - begin for begin, end in self.trained)
            self.trained = []
        return number, self._left[number]

    def carry(self) -> None:
        for worker in self.workers.values():
            for request in worker.client.unsaid(False):
                for member, answer in self.book.hear(request, list(self.workers)):
                    self.workers[member].client.hear(answer)

    @property
    def updates(self) -> int:
        """That the shard has applied."""
        return self.host._shards[0].shard.state.version

    @property
    def staleness(self) -> Counter[int]:
        return sum((worker.sync.server_totals.staleness for worker in self.workers.values()), Counter[int]())

    @property
    def throughput(self) -> float:
        """Steps of all a second."""
        return self.made / self.ended
