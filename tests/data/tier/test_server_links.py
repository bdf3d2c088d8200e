"""A data server's socket: at a file of this host, and under keys at a port that strangers do not pass."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from virtual_data_servers import KEY, Numbers, expected

from shoal.data.tier.batch_server import serve_batches
from shoal.data.tier.fetching import BatchFetcher, FetchedLoader
from shoal.data.tier.preparing import BatchPreparer
from shoal.data.tier.server_links import SocketLinks
from shoal.launch.address import find_free_port
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.transport.keys import CurveKeyPair

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Fork a data server."""
    pids: list[int] = []

    def begin(address: str, lock: ServerCredentials | None = None) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                serve_batches(address, lock, [BatchPreparer(DataLoader(Numbers(), batch_size=2))])
            finally:
                os._exit(1)
        pids.append(pid)
        return pid

    yield begin
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def links() -> Iterator[Callable[..., SocketLinks]]:
    made: list[SocketLinks] = []

    def make(*words: object) -> SocketLinks:
        made.append(SocketLinks(*words))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def fetch(links: SocketLinks, number: int = 10) -> tuple[torch.Tensor, BatchFetcher, list[str]]:
    warnings: list[str] = []
    fetcher = BatchFetcher(links, warnings.append)
    loader = FetchedLoader(0, BatchPreparer(DataLoader(Numbers(), batch_size=2)))
    batches = fetcher.fetch(loader, KEY, iter([[2 * i, 2 * i + 1] for i in range(number)]))
    return torch.stack(list(batches)), fetcher, warnings


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # short, as addresses of sockets must be
        yield Path(name)


def test_batches_come_from_two_processes_of_this_host(
    start: Start, links: Callable[..., SocketLinks], folder: Path
) -> None:
    addresses = [f"ipc://{folder}/data-{number}" for number in range(2)]
    for address in addresses:
        start(address)
    found, fetcher, warnings = fetch(links(addresses), 40)
    assert torch.equal(found, expected(40))
    assert (fetcher.totals.received, fetcher.totals.local, warnings) == (40, 0, [])


def test_a_server_that_is_killed_and_started_again_is_connected_anew(
    start: Start, links: Callable[..., SocketLinks], folder: Path
) -> None:
    address, words = f"ipc://{folder}/data-0", ["up", "down", "up"]
    pid = start(address)
    both, seen = links([address]), list[str]()
    until = time.monotonic() + 60
    while seen != words and time.monotonic() < until:
        seen += [event.kind for event in both.poll(0.2)]
        if seen == ["up"]:
            os.kill(pid, signal.SIGKILL)
        if seen == ["up", "down"]:
            start(address)
            seen += [event.kind for event in both.poll(20.0)]
    assert seen == words


def test_under_keys_a_stranger_gets_no_answer(start: Start, links: Callable[..., SocketLinks]) -> None:
    server, known, stranger = CurveKeyPair.new(), CurveKeyPair.new(), CurveKeyPair.new()
    address = f"tcp://127.0.0.1:{find_free_port('127.0.0.1')}"
    start(address, ServerCredentials(server, {known.public: 1}))
    found, fetcher, _ = fetch(links([address], [ClientCredentials(known, server.public)]))
    assert torch.equal(found, expected(10))
    assert fetcher.totals.local == 0
    for pair, public in ((stranger, server.public), (known, stranger.public)):
        events = links([address], [ClientCredentials(pair, public)]).poll(1.0)
        assert all(event.kind == "down" for event in events)
