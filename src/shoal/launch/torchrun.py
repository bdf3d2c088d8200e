"""Workers started by torchrun, found by its environment variables.

All on one host: they share memory, like the workers of `shoal run`. On several: links, whose addresses and public keys
are exchanged through torchrun's store, and memory among those of one host; with SHOAL_TRUSTED=1 a gloo group. The
store itself asks nobody who they are.
"""

import os
import secrets
import socket
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from shoal.core.errors import PeerLost, UsageError
from shoal.groups.base import WorkerGroup, deadline_seconds
from shoal.groups.links import LinkedGroup, trusted
from shoal.groups.probe import own_address
from shoal.groups.process_group import TorchGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.hosts.arena import SharedArena
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair, check_key
from shoal.transport.messages import PROTOCOL

ADDRESS_VARIABLE = "SHOAL_ADDRESS"
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def present() -> bool:
    """Whether this process was started by torchrun (or by hand in its manner)."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join_group() -> WorkerGroup:
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise UsageError(f"RANK is set but {', '.join(missing)} is not; start with torchrun, or unset RANK")
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank >= size:
        raise UsageError(f"RANK={rank} does not fit WORLD_SIZE={size}; ranks are 0 to {size - 1}")
    # the script, or another library, may use the same names in the store
    store = PrefixStore("shoal", _store(rank, size))
    # torchrun says that all are on one host; whether they can share memory is tried
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        shared = _shared(store, rank, size)
        if shared is not None:
            return shared
    return TorchGroup(store, rank, size) if trusted() else _linked(store, rank, size)


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


def _shared(store: Store, rank: int, size: int) -> SharedGroup | None:
    """A shared group if every worker can open worker 0's arena, else None on all of them."""
    arena = None
    if rank == 0:
        arena = SharedArena.create()
        store.set("arena", f"{os.getpid()}:{arena.descriptor}")
    else:
        pid, descriptor = store.get("arena").decode().split(":")
        try:
            arena = SharedArena.of_process(int(pid), int(descriptor))
        except OSError:
            arena = None
    store.set(f"arena/{rank}", "1" if arena else "0")
    everyone = all(store.get(f"arena/{peer}") == b"1" for peer in range(size))
    if not (arena and everyone):
        return None
    group = SharedGroup(arena, rank, size)
    # replicas are compared through it when the scripts end
    group.store = store
    return group


def _linked(store: Store, rank: int, size: int) -> WorkerGroup:
    """Every worker makes a key of its own for this run, and tells the others where it is."""
    keys = CurveKeyPair.new()
    endpoint = LinkEndpoint(f"tcp://{_address()}:*", keys)
    if rank == 0:
        store.set("links/run", secrets.token_hex(8))
    store.set(f"links/{rank}", f"{PROTOCOL} {endpoint.address} {keys.public.decode()} {socket.gethostname()}")
    try:
        book = {peer: _entry(peer, store.get(f"links/{peer}").decode()) for peer in range(size)}
        run = store.get("links/run").decode()
    except UsageError:
        endpoint.close()
        raise
    except RuntimeError as error:
        endpoint.close()
        raise PeerLost(f"worker {rank} stops: not everybody came to the store: {str(error).splitlines()[0]}") from None
    group = LinkedGroup(run, book, rank, endpoint)
    group.store = store
    _settle_hosts(store, group)
    return group


def _settle_hosts(store: Store, group: LinkedGroup) -> None:
    """Where a host has several workers they share memory too, if all hosts can."""
    names = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    told = [each.decode().split("/") for each in group.gather("/".join(os.environ.get(n, "") for n in names).encode())]
    # where every host has one worker there is nothing to share
    if not all(word.isdecimal() for words in told for word in words) or all(words[2] == "1" for words in told):
        return
    host, rank, size = (_number(name) for name in names)
    local = _shared(PrefixStore(f"host/{host}", store), rank, size)
    if all(group.gather(b"y" if local is not None else b"")):
        assert local is not None
        group.settle_hosts(local)


def _entry(peer: int, text: str) -> BookEntry:
    protocol, address, public, host = text.split(" ", 3)
    if protocol != str(PROTOCOL):
        raise UsageError(
            f"this side speaks protocol {PROTOCOL} on links, worker {peer} (host {host[:64]}) {protocol[:20]}; "
            "use the same Shoal on all hosts"
        )
    return BookEntry(address, check_key(public.encode()), host)


def _address() -> str:
    """The address by which this host reaches worker 0's, or $SHOAL_ADDRESS.

    Where worker 0's host knows itself by its loopback address, that of its way to anywhere else is taken.
    """
    if told := os.environ.get(ADDRESS_VARIABLE):
        return told
    found, master = own_address(), os.environ["MASTER_ADDR"]
    if not found.startswith("127.") or master.startswith("127.") or master == "localhost":
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dummy:
        try:
            dummy.connect(("192.0.2.1", 9))  # of a datagram socket: chooses a route, sends nothing
        except OSError:
            return found
        address: str = dummy.getsockname()[0]
    return address
