"""A world of real worker processes, forked from the test, that run a function and hand back tensors.

The parent must be single-threaded in torch (`torch.set_num_threads(1)` before any work), or the fork may hang.
"""

import gc
import io
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core.clock import Deadline
from shoal.groups.base import WorkerGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import BYTES, StatusBoard
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.train.run import Run

Result = dict[str, Tensor]

ENDINGS: list[Callable[[], None]] = []
"""Functions called when a worker's function has ended, in place of atexit, because its last data may be under way."""


class WorldError(AssertionError):
    """A worker of the world failed; the message holds its traceback."""


@dataclass(frozen=True)
class WorkerWorld:
    """The argument of a worker's function."""

    group: WorkerGroup
    dir: Path
    """A folder all workers share, empty in the beginning."""

    def start(
        self,
        plan: str = "",
        seed: int = 0,
        name: str = "run",
        checkpoint: str = "auto",
        resume: Path | None = None,
        servers: str = "",
    ) -> Run:
        """A run of this world, as `shoal.start()` would give it; several need different names."""
        place = self.dir / name
        more = {"checkpoint": checkpoint, "resume": resume, "servers": servers}
        context = WorkerContext(self.group, name, place, plan, seed, begun=False, **more)  # type: ignore[arg-type]
        return Run(context, Plan.parse(plan) if plan else Plan())


def run_world(size: int, body: Callable[[WorkerWorld], Result | None], *, seconds: float = 60.0) -> list[Result]:
    """Run `body` in `size` workers, and return their results in order of rank. A failing worker ends the world."""
    results, statuses = launch_world(size, body, seconds=seconds)
    if any(statuses):
        told = "\n".join(filter(None, map(error_of, results)))
        raise WorldError(f"exit codes {statuses}\n{told}")
    return results


def launch_world(
    size: int, body: Callable[[WorkerWorld], Result | None], *, seconds: float = 60.0
) -> tuple[list[Result], list[int]]:
    """As `run_world`, but a worker may fail or be killed: returns results (with `error`) and exit codes."""
    arena = SharedArena.create()
    board = StatusBoard(arena.map(0, BYTES))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        pids = [_fork(arena, rank, size, body, directory) for rank in range(size)]
        statuses = _wait(pids, board, Deadline.after(seconds))
        results = [_load(directory / f"result-{rank}.npz") for rank in range(size)]
    arena.close()
    return results, statuses


def _fork(
    arena: SharedArena, rank: int, size: int, body: Callable[[WorkerWorld], Result | None], directory: Path
) -> int:
    pid = os.fork()
    if pid:
        return pid
    # as `shoal run` does: what the test has imported is no garbage, and looking through it takes 0.1 s at each join
    gc.freeze()
    code = 1
    try:
        group = SharedGroup(arena, rank, size)
        shared = directory / "shared"
        shared.mkdir(exist_ok=True)
        _save(directory, rank, body(WorkerWorld(group, shared)) or {})
        for end in ENDINGS:
            end()
        code = 0
    except BaseException:  # noqa: BLE001  (told to the parent, which raises it again)
        text = traceback.format_exc().encode()
        _save(directory, rank, {"error": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
    finally:
        # Not sys.exit: what pytest cleans up at the end is the parent's.
        os._exit(code)


def _save(directory: Path, rank: int, result: Result) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{name: tensor.detach().numpy() for name, tensor in result.items()})  # type: ignore[arg-type]
    temporary = directory / f"partial-{rank}"
    temporary.write_bytes(buffer.getvalue())
    # Renamed when complete, because a worker may be killed while it writes.
    temporary.rename(directory / f"result-{rank}.npz")


def _load(path: Path) -> Result:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as data:
        return {name: torch.from_numpy(data[name]) for name in data.files}


def _wait(pids: list[int], board: StatusBoard, deadline: Deadline) -> list[int]:
    """Return the exit codes in order of rank; workers left at the deadline are killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for rank, pid in enumerate(pids):
            if rank in codes:
                continue
            if deadline.expired:
                os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] != 0:
                    # The others may wait for it, and see this.
                    board.abort(rank)
        time.sleep(0.002)
    return [codes[rank] for rank in range(len(pids))]


def error_of(result: Result) -> str:
    """The traceback a worker left instead of a result, or nothing."""
    return result["error"].numpy().tobytes().decode() if "error" in result else ""
