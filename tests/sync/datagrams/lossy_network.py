"""A network in virtual time that loses, delays, doubles and damages datagrams, and the workers on it."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.sync.datagrams.best_effort import FRAMING, BestEffortExchange, DatagramCounts, DatagramPeer
from shoal.sync.datagrams.differences import DifferenceBlocks, Values
from shoal.transport.datagram_seal import DatagramKeyPair
from shoal.transport.rate_limit import RateLimit

TURN = 0.001


@dataclass
class NetworkFaults:
    """Shares of all datagrams; `delay`: the longest, in seconds, so that they overtake each other."""

    lost: float = 0.0
    doubled: float = 0.0
    damaged: float = 0.0
    delay: float = 0.0


class SimulatedReplica:
    """One worker: parameters, what it has changed, and its end of the protocol."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.keys = name, DatagramKeyPair()
        self.parameters, self.own = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def begin(self, others: Sequence["SimulatedReplica"], rate: float, at_once: int) -> None:
        self.blocks = DifferenceBlocks(len(self.own), [other.name for other in others])
        peers = {o.name: DatagramPeer(int(o.name[1:]), self.keys.seal_with(o.keys.public)) for o in others}
        self.counts = DatagramCounts()
        slot, limit = int(self.name[1:]), RateLimit(rate, at_once)
        self.exchange = BestEffortExchange(slot, peers, self.blocks, limit, self.counts)

    def change(self, by: Values) -> None:
        """Make a step."""
        self.parameters += by
        self.own += by
        self.blocks.offer(self.own)

    def take_in(self) -> None:
        if (arrived := self.blocks.take()) is not None:
            self.parameters += arrived


class LossyNetwork:
    """All workers, and what is between them."""

    def __init__(
        self, workers: int, size: int, faults: NetworkFaults, seed: int = 0, rate: float = 1e6, at_once: int = 1 << 14
    ) -> None:
        self.replicas = [SimulatedReplica(f"w{n}", size) for n in range(workers)]
        for replica in self.replicas:
            replica.begin([other for other in self.replicas if other is not replica], rate, at_once)
        self.faults, self.now, self._random, self._sent = faults, 0.0, random.Random(seed), 0
        self._flying: list[tuple[float, int, str, bytes]] = []
        self.bytes: dict[str, list[tuple[float, int]]] = {replica.name: [] for replica in self.replicas}
        """Of each worker: when it sent how much."""

    def run(self, seconds: float) -> None:
        """Let datagrams travel for so long."""
        until = self.now + seconds
        while self.now < until:
            self.now += TURN
            for replica in self.replicas:
                while (found := replica.exchange.next_datagram(self.now)) is not None:
                    self.bytes[replica.name].append((self.now, len(found[1]) + FRAMING))
                    self._send(*found)
            while self._flying and self._flying[0][0] <= self.now:
                _, _, to, data = heapq.heappop(self._flying)
                next(each for each in self.replicas if each.name == to).exchange.receive(data)
            for replica in self.replicas:
                replica.take_in()

    def _send(self, to: str, data: bytes) -> None:
        draw, faults = self._random.random, self.faults
        for _ in range(1 + (draw() < faults.doubled)):
            if draw() < faults.lost:
                continue
            if draw() < faults.damaged:
                at = self._random.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ (1 << self._random.randrange(8))]) + data[at + 1 :]
            arrival = self.now + draw() * faults.delay
            self._sent += 1  # what left first comes first, if both take as long
            heapq.heappush(self._flying, (arrival, self._sent, to, data))
