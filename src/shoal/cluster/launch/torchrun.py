"""Workers started by torchrun, found by its environment variables.

All on one host: they share memory, like the workers of `shoal run`. On several: a gloo group over torchrun's store.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from shoal.cluster.arena import Arena
from shoal.cluster.group import Group, deadline_seconds
from shoal.cluster.shared import SharedGroup
from shoal.cluster.spread import SpreadGroup
from shoal.core.errors import PeerLost, UsageError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def present() -> bool:
    """Whether this process was started by torchrun (or by hand in its manner)."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join_group() -> Group:
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise UsageError(f"RANK is set but {', '.join(missing)} is not; start with torchrun, or unset RANK")
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank >= size:
        raise UsageError(f"RANK={rank} does not fit WORLD_SIZE={size}; ranks are 0 to {size - 1}")
    store = PrefixStore("shoal", _store(rank, size))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        shared = _shared(store, rank, size)
        if shared is not None:
            return shared
    return SpreadGroup(store, rank, size)


def _number(name: str) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name}={text!r} is not a whole number; start with torchrun, or unset RANK")
    return int(text)


def _store(rank: int, size: int) -> Store:
    if dist.is_initialized():  # the script was first: the port may be taken, so use the store it made
        store: Store = dist.distributed_c10d._get_default_store()
        return store
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=timedelta(seconds=deadline_seconds())))
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).splitlines()[0]
        raise PeerLost(f"the workers do not meet at {place} (MASTER_ADDR, MASTER_PORT): {reason}") from None
    return store


def _shared(store: Store, rank: int, size: int) -> Group | None:
    """A shared group if every worker can open worker 0's arena, else None on all of them."""
    arena = None
    if rank == 0:
        arena = Arena.create()
        store.set("arena", f"{os.getpid()}:{arena.descriptor}")
    else:
        pid, descriptor = store.get("arena").decode().split(":")
        try:
            arena = Arena.of_process(int(pid), int(descriptor))
        except OSError:
            arena = None
    store.set(f"arena/{rank}", "1" if arena else "0")
    everyone = all(store.get(f"arena/{peer}") == b"1" for peer in range(size))
    if not (arena and everyone):
        return None
    group = SharedGroup(arena, rank, size)
    group.store = store
    return group
