"""Data servers in virtual time: real `BatchServer`s behind links that only a clock moves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from shoal.data.tier.batch_server import BatchServer
from shoal.data.tier.fetching import BatchFetcher, FetchedLoader
from shoal.data.tier.preparing import BatchPreparer
from shoal.data.tier.server_links import Frame, LinkEvent
from shoal.data.turn import PassKey

KEY = PassKey(0, 0, 0)


class Numbers(Dataset[Any]):
    """Sample i is i; noise shows whether it was prepared as anywhere else."""

    def __init__(self, size: int = 1000) -> None:
        self.size, self.prepared = size, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.prepared.append(index)
        return torch.tensor([index, torch.rand(()).item()])


@dataclass
class VirtualServer:
    """One process: it prepares a batch in `seconds`, one after the other."""

    server: BatchServer
    seconds: float = 0.1
    is_up: bool = True
    frozen_until: float = 0.0
    free_at: float = 0.0
    answers: list[tuple[float, list[Frame]]] = field(default_factory=list)
    asked: int = 0


class VirtualLinks:
    """The links of one worker."""

    def __init__(self, servers: Sequence[VirtualServer]) -> None:
        self.servers, self.now = servers, 0.0
        self.events = [LinkEvent(number, "up") for number, each in enumerate(servers) if each.is_up]
        self.plans: list[tuple[float, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self.servers)

    def clock(self) -> float:
        return self.now

    def at(self, second: float, act: Callable[[], None]) -> None:
        self.plans.append((second, act))
        self.plans.sort(key=lambda plan: plan[0])

    def send(self, server: int, frames: Sequence[Frame]) -> None:
        each = self.servers[server]
        each.asked += 1
        if each.is_up:
            each.free_at = max(self.now, each.free_at, each.frozen_until) + each.seconds
            answer = each.server.answer([bytes(frame) for frame in frames])
            assert answer is not None
            each.answers.append((each.free_at, list(answer)))

    def poll(self, seconds: float) -> list[LinkEvent]:
        until = self.now + seconds
        while True:
            moments = [second for each in self.servers for second, _ in each.answers] + [s for s, _ in self.plans]
            due = min((moment for moment in moments if moment > self.now), default=until)
            self._happen()
            if self.events or self.now >= until:
                break
            self.now = min(until, due)
        events, self.events = self.events, []
        return events

    def _happen(self) -> None:
        while self.plans and self.plans[0][0] <= self.now:
            self.plans.pop(0)[1]()
        for number, each in enumerate(self.servers):
            for moment, frames in [answer for answer in each.answers if answer[0] <= self.now]:
                each.answers.remove((moment, frames))
                self.events.append(LinkEvent(number, "said", [bytes(frame) for frame in frames]))

    def kill(self, number: int) -> None:
        each = self.servers[number]
        if each.is_up:
            each.is_up = False
            each.answers.clear()
            self.events.append(LinkEvent(number, "down"))

    def restart(self, number: int) -> None:
        each = self.servers[number]
        if not each.is_up:
            each.is_up, each.free_at, each.frozen_until = True, self.now, 0.0
            self.events.append(LinkEvent(number, "up"))

    def freeze(self, number: int, until: float) -> None:
        each = self.servers[number]
        each.frozen_until = until
        late = max(0.0, until - self.now)
        each.answers = [(moment + late, frames) for moment, frames in each.answers]


@dataclass
class VirtualTier:
    """A worker and its servers."""

    links: VirtualLinks
    fetcher: BatchFetcher
    loader: FetchedLoader
    own: Numbers
    warnings: list[str]

    @classmethod
    def of(cls, *servers: VirtualServer) -> "VirtualTier":
        links, warnings, own = VirtualLinks(servers), list[str](), Numbers()
        fetcher = BatchFetcher(links, warnings.append, clock=links.clock)
        return cls(links, fetcher, FetchedLoader(0, BatchPreparer(DataLoader(own, batch_size=2))), own, warnings)

    def fetch(self, number: int, key: PassKey = KEY, step: float = 0.0) -> list[torch.Tensor]:
        """The batches of a pass, each trained on for `step` seconds."""
        batches = []
        for batch in self.fetcher.fetch(self.loader, key, iter([[2 * i, 2 * i + 1] for i in range(number)])):
            batches.append(batch)
            self.links.now += step
        return batches


def serving(dataset: Dataset[Any] | None = None, **facts: Any) -> VirtualServer:
    return VirtualServer(BatchServer([BatchPreparer(DataLoader(dataset or Numbers(), batch_size=2))]), **facts)


def expected(number: int, key: PassKey = KEY) -> torch.Tensor:
    """What one process prepares."""
    alone = BatchPreparer(DataLoader(Numbers(), batch_size=2))
    return torch.stack([alone.prepare(key, [2 * i, 2 * i + 1]) for i in range(number)])
