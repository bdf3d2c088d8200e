"""Compares replicas when the script ends, where no launcher of ours reads all records: under torchrun.

Every worker says through torchrun's store what it holds. The last one to come compares; worker 0, whose process may be
the store, waits a moment for the others.
"""

import os
import sys
import time
from typing import NoReturn

from torch._C._distributed_c10d import Store

from shoal.core.clock import Deadline
from shoal.core.errors import DivergedError, ShoalError
from shoal.core.events import WorkerEnded
from shoal.core.replicas import name_different
from shoal.groups.base import WorkerGroup

WAIT = 10.0
"""Seconds in which the other workers may end after worker 0."""
PAUSE = 0.02


def compare_at_end(group: WorkerGroup, ended: WorkerEnded) -> None:
    """Raise DivergedError if workers hold different parameters; who cannot be asked is left out."""
    store = getattr(group, "store", None)
    if not isinstance(store, Store) or group.size == 1:
        return
    try:
        different = _compare(store, group.rank, group.size, f"{ended.step} {ended.fingerprint}")
    except RuntimeError:  # the store has ended with its host: nobody can be asked
        return
    if different:
        raise DivergedError(different)


def _compare(store: Store, rank: int, size: int, told: str) -> str:
    # before it is counted: with the full count, all have said what they hold
    store.set(f"end/{rank}", told)
    count, deadline = store.add("end/count", 1), Deadline.after(WAIT)
    while rank == 0 and count < size and not deadline.expired:
        time.sleep(PAUSE)
        # adding 0 reads the counter
        count = store.add("end/count", 0)
    if count < size:
        return ""
    said = [store.get(f"end/{worker}").decode().split(" ", 1) for worker in range(size)]
    return name_different({worker: (int(step), found) for worker, (step, found) in enumerate(said)})


def fail_at_exit(error: ShoalError, group: WorkerGroup) -> NoReturn:
    """End this process with an error after its script has ended well: nothing that is raised then has an effect."""
    sys.stderr.write(f"shoal: {error}\n")
    group.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
