"""A shard and workers that are processes, one of which is killed: what was acknowledged is in the sum, exactly."""

import os
import signal
import traceback
from pathlib import Path
from typing import NoReturn

import numpy as np
from meshes import WAIT

from shoal.sync.server.client import ShardClient
from shoal.sync.server.rules.add import AddRule
from shoal.sync.server.service import ShardService
from shoal.sync.server.shard import ParameterShard, PushOutcome
from shoal.transport.endpoint import LinkEndpoint, book_in
from shoal.transport.mesh import LinkMesh

SIZE, STEPS, KILLED_AFTER, BOUND = 1000, 12, 4, 1
STAYING, LOST = 1, 2


def mesh_of(rank: int, folder: Path) -> LinkMesh:
    """Rank 0 is the server."""
    book = book_in(folder / "sockets", 3)
    mesh = LinkMesh("run", book, rank, LinkEndpoint(book[rank].address))
    mesh.wait_for_peers(WAIT)
    return mesh


def work(rank: int, folder: Path) -> None:
    """Worker 1 adds ones, worker 2 hundreds; worker 2 kills itself when its fourth push is acknowledged."""
    client = ShardClient(mesh_of(rank, folder).messenger, str(rank), "0", 0, SIZE)
    for clock in range(STEPS):
        found = client.pull(clock, WAIT)
        assert clock - found.minimum <= BOUND
        update = np.full(SIZE, 1 if rank == STAYING else 100, np.float32)
        assert client.push(clock, update, WAIT) is PushOutcome.APPLIED
        if rank == LOST and clock + 1 == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def become_worker(rank: int, folder: Path) -> NoReturn:
    code = 1
    try:
        work(rank, folder)
        code = 0
    except BaseException:  # noqa: BLE001  (the exit code tells the test)
        traceback.print_exc()
    finally:
        os._exit(code)


def start_worker(rank: int, folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        become_worker(rank, folder)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_kill_9_of_a_worker_loses_no_acknowledged_update_and_holds_up_nobody(tmp_path: Path) -> None:
    pids = {rank: start_worker(rank, tmp_path) for rank in (STAYING, LOST)}
    mesh = mesh_of(0, tmp_path)
    try:
        shard = ParameterShard(np.zeros(SIZE, np.float32), AddRule(), ["1", "2"], BOUND)
        service = ShardService(mesh.messenger, 0, shard)
        assert status_of(pids[LOST]) == -signal.SIGKILL
        service.change_view(["1"])
        assert status_of(pids[STAYING]) == 0
        assert (service.values()[1] == STEPS + 100 * KILLED_AFTER).all()
    finally:
        mesh._lost = mesh.rank  # nobody is left who would acknowledge
        mesh.close()
