"""Pushes are read where workers wrote them, and values put where they want them; what workers say of it is checked."""

import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from shoal.core.errors import PayloadError, ShoalError
from shoal.hosts.sealed_memory import SealedMemory, map_sealed
from shoal.hosts.status_board import StatusBoard
from shoal.launch.services import RunService, ServiceProcesses
from shoal.sync.server.array_places import AreaHandover, ArrayPlace, PlacedArrays, encode
from shoal.sync.server.member_areas import MemberAreas, areas_file
from shoal.sync.server.messages import OpenRequest, PullRequest, PushRequest, SumRequest
from shoal.sync.server.process import serve_shards
from shoal.sync.server.shared_connection import SharedServerConnection
from shoal.sync.server.worker_areas import WorkerAreas

A, B = MEMBERS = ["w0.0", "w1.0"]
SIZE = 100_000


@pytest.fixture
def services() -> Iterator[ServiceProcesses]:
    found = ServiceProcesses((RunService("server 0", serve_shards),))
    found.open()
    yield found
    assert found.find_dead() is None
    found.close()


@pytest.fixture
def workers(services: ServiceProcesses) -> Iterator[list[SharedServerConnection]]:
    found = [SharedServerConnection(services.addresses, each, StatusBoard.private(), 60.0) for each in MEMBERS]
    yield found
    for each in found:
        each.close()


def test_what_is_pulled_is_what_was_pushed_and_lies_where_it_was_wanted(
    workers: list[SharedServerConnection],
) -> None:
    """Whole numbers, so sums are exact; each push overwrites the memory of the one before."""
    memory = [[worker.allocate(4 * SIZE).view(np.float32) for _ in range(2)] for worker in workers]
    expected, chance = np.zeros(SIZE, np.float32), np.random.default_rng(0)
    for worker, (sent, landing) in zip(workers, memory, strict=True):
        worker.wait(0, worker.send(0, OpenRequest(0, "add", {}, None, 1, MEMBERS), [sent], landing))
    for clock in range(5):
        for worker, (sent, landing) in zip(workers, memory, strict=True):
            sent[:] = chance.integers(-9, 9, SIZE)
            expected += sent
            worker.wait(0, worker.send(0, PushRequest(clock), [sent]))
            (_, (values,)) = worker.wait(0, worker.send(0, PullRequest(clock + 1), landing=landing))
            assert np.frombuffer(values, np.float32).ctypes.data == landing.ctypes.data
            assert np.array_equal(landing, expected)


def test_a_worker_killed_while_it_writes_costs_its_own_push_alone(
    services: ServiceProcesses, workers: list[SharedServerConnection]
) -> None:
    opens = OpenRequest(0, "add", {}, None, 1, MEMBERS)
    process = os.fork()
    if process == 0:
        sent = workers[0].allocate(4 * SIZE).view(np.float32)
        workers[0].wait(0, workers[0].send(0, opens, [sent]))
        sent[:] = 1.0
        workers[0].wait(0, workers[0].send(0, PushRequest(0), [sent]))
        sent[: SIZE // 2] = 9.0
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    second = workers[1]
    sent, landing = (second.allocate(4 * SIZE).view(np.float32) for _ in range(2))
    second.wait(0, second.send(0, opens, [sent]))
    sent[:] = 2.0
    second.wait(0, second.send(0, PushRequest(0), [sent]))
    second.wait(0, second.send(0, PullRequest(1), landing=landing))
    assert np.all(landing == 3.0)


def test_with_rounds_of_all_a_push_stays_what_it_was_until_its_round(workers: list[SharedServerConnection]) -> None:
    first, second = workers
    sent = first.allocate(4 * SIZE).view(np.float32)
    for worker in (first, second):
        worker.wait(0, worker.send(0, OpenRequest(0, "add", {}, 0, 1, MEMBERS), [np.zeros(SIZE, np.float32)]))
    sent[:] = 1.0
    first.wait(0, first.send(0, PushRequest(0), [sent]))
    sent[:] = 5.0
    second.wait(0, second.send(0, PushRequest(0), [np.full(SIZE, 2.0, np.float32)]))
    (_, (values,)) = second.wait(0, second.send(0, PullRequest(1)))
    assert np.all(np.frombuffer(values, np.float32) == 3.0)


def test_a_sum_lands_at_every_worker_though_one_has_died_since(workers: list[SharedServerConnection]) -> None:
    first, second = workers
    memory = [[worker.allocate(4 * SIZE).view(np.float32) for _ in range(2)] for worker in workers]
    numbers = []
    for worker, (sent, landing), value in zip((first, second), memory, (1.0, 2.0), strict=True):
        sent[:] = value
        numbers.append(worker.send(0, SumRequest(1, 0, 0, 1, MEMBERS, "float32"), [sent], landing))
    second.wait(0, numbers[1])
    first.close()
    assert np.all(memory[1][1] == 3.0)
    sent, landing = memory[1]
    second.wait(0, second.send(0, SumRequest(2, 0, 0, 1, [B], "float32"), [sent], landing))
    assert np.all(landing == 2.0)


@pytest.fixture
def areas(tmp_path: Path) -> Iterator[tuple[MemberAreas, str]]:
    address = f"ipc://{tmp_path}/0-0"
    found = MemberAreas(address, zmq.Poller())
    yield found, address
    found.close()


def hand_over(address: str, said: bytes, descriptor: int) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.connect(areas_file(address))
    socket.send_fds(found, [said], [descriptor])
    return found


def read(areas: MemberAreas, *places: ArrayPlace) -> list[memoryview]:
    return areas.read(A, 1, encode(PlacedArrays(list(places))), [])


def test_memory_of_a_worker_that_has_ended_is_forgotten_once_nothing_lies_in_it(
    areas: tuple[MemberAreas, str],
) -> None:
    server, address = areas
    worker = WorkerAreas(A, [address], 10.0)
    array = worker.take(SIZE)
    array[:] = 7
    place = worker.place(0, array)
    assert place is not None
    (found,) = read(server, place)
    worker.close()  # as the kernel does, however it ends
    server.take_in()
    with pytest.raises(PayloadError, match=r"w0\.0 names bytes 0 to 100000 of area 0, which has 0"):
        read(server, place)
    assert bytes(found[:2]) == b"\x07\x07", "a push that waits is still there"


@pytest.mark.parametrize("place", [ArrayPlace(0, 0, 1 << 30), ArrayPlace(0, 1 << 16, 1), ArrayPlace(1, 0, 1)])
def test_places_outside_of_what_was_handed_over_are_refused(areas: tuple[MemberAreas, str], place: ArrayPlace) -> None:
    server, address = areas
    worker = WorkerAreas(A, [address], 10.0)
    worker.place(0, worker.take(16))
    with pytest.raises(PayloadError, match="names bytes"):
        read(server, place)
    worker.close()


@pytest.mark.parametrize(
    ("said", "sealed"),
    [
        pytest.param(encode(AreaHandover(A, 0, 4096)), False, id="it could shrink"),
        pytest.param(encode(AreaHandover(A, 0, 1 << 20)), True, id="it is shorter"),
        pytest.param(encode(AreaHandover(A, 1 << 30, 4096)), True, id="too many areas"),
        pytest.param(b"\x93no handover", True, id="nonsense"),
    ],
)
def test_memory_that_could_harm_its_reader_is_not_mapped(
    areas: tuple[MemberAreas, str], said: bytes, sealed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    server, address = areas
    descriptor = SealedMemory.create(4096).descriptor if sealed else os.memfd_create("open")
    os.ftruncate(descriptor, 4096)
    with hand_over(address, said, descriptor):
        server.take_in()
        assert "was refused" in capfd.readouterr().err
        with pytest.raises(PayloadError):
            read(server, ArrayPlace(0, 0, 16))


@pytest.fixture
def short_files() -> Iterator[None]:
    """So that a test that fails takes no memory from others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("size", "why"), [(8 << 20, "File too large"), (1 << 46, "67108864 MiB.* are available")])
@pytest.mark.usefixtures("short_files")
def test_too_little_memory_is_an_error_when_it_is_taken(size: int, why: str) -> None:
    with pytest.raises(ShoalError, match=f"cannot reserve .*{why}"):
        WorkerAreas(A, [], 1.0).take(size)


def test_sealed_memory_neither_shrinks_nor_grows_and_ends_with_its_last_reader() -> None:
    sealed = SealedMemory.create(4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(sealed.descriptor, size)
    other = map_sealed(sealed.descriptor, 4096)
    sealed.memory[0] = 7
    assert other[0] == 7
    sealed.close()
    del sealed
    gc.collect()
    assert other[0] == 7
