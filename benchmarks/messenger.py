"""Messages between two processes of this machine: Shoal's messenger under keys and through shared memory, plain pyzmq
with CURVE, and torch RPC.

    python benchmarks/messenger.py [--calls 300] [--bulks 5] [--out DIR]

One process calls, the other answers; all live in the same two processes and take turns. A call carries 64 bytes
each way. A bulk is 25 MB one way, until the other side says that it has all of it. Shared memory and torch RPC encrypt
nothing.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import zmq
from report import Table, machine_line, write_report
from torch.distributed import rpc

from shoal.core.clock import now
from shoal.hosts.arena import SharedArena
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh
from shoal.transport.messenger import CallReply, Messenger, ReceivedMessage
from shoal.transport.ring_loop import RingLoop
from shoal.transport.rings import HostRings

SMALL, BULK = 64, 25_000_000
DEADLINE = 60.0
CONTESTANTS = ("shoal", "shoal in memory", "pyzmq CURVE", "torch RPC")


def echo(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.numel() <= SMALL else tensor[:0]


def mesh_of(rank: int, keys: list[CurveKeyPair], pipe: Connection) -> LinkMesh:
    """A mesh of the two, which tell each other their addresses."""
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", keys[rank])
    pipe.send(endpoint.address)
    other = pipe.recv()
    addresses = [endpoint.address, other] if rank == 0 else [other, endpoint.address]
    book = {r: BookEntry(addresses[r], keys[r].public) for r in range(2)}
    mesh = LinkMesh("benchmark", book, rank, endpoint)
    mesh.wait_for_peers(DEADLINE)
    return mesh


def in_memory(rank: int, arena: SharedArena) -> tuple[RingLoop, Messenger]:
    """A messenger over rings; the two know each other by their ranks."""
    loop = RingLoop(HostRings(arena, 2), rank, str(rank))
    loop.set_peers({0: "0", 1: "1"})
    loop.start()
    return loop, Messenger(loop)


def answer(got: ReceivedMessage) -> CallReply:
    return CallReply(got.head, [array for array in got.arrays if array.size <= SMALL])


def start_rpc(rank: int, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)


def answer_zmq(server: "zmq.Socket[bytes]", ended: threading.Event) -> None:
    while not ended.is_set():
        if server.poll(100):
            data = server.recv(copy=False)
            server.send(data.bytes if len(data) <= SMALL else b"")


def serve(keys: list[CurveKeyPair], port: int, pipe: Connection) -> None:
    """The process that answers."""
    torch.set_num_threads(1)
    mesh = mesh_of(1, keys, pipe)
    mesh.messenger.serve("echo", answer, 16, threaded=False)
    loop, messenger = in_memory(1, SharedArena.of_process(*pipe.recv()))
    messenger.serve("echo", answer, 16, threaded=False)
    server = zmq.Context.instance().socket(zmq.REP)
    server.curve_server = True
    server.curve_publickey, server.curve_secretkey = keys[1].public, keys[1].secret
    pipe.send(server.bind_to_random_port("tcp://127.0.0.1"))
    ended = threading.Event()
    answering = threading.Thread(target=answer_zmq, args=(server, ended))
    answering.start()
    start_rpc(1, port)
    rpc.shutdown()
    ended.set()
    answering.join(DEADLINE)
    loop.close()
    mesh.close()


def contestants(keys: list[CurveKeyPair], port: int, pipe: Connection) -> tuple[LinkMesh, list[Callable[[int], None]]]:
    """What sends so many bytes and waits for the answer, each its own way."""
    mesh = mesh_of(0, keys, pipe)
    arena = SharedArena.create()
    pipe.send((os.getpid(), arena.descriptor))
    _, messenger = in_memory(0, arena)
    client = zmq.Context.instance().socket(zmq.REQ)
    client.curve_publickey, client.curve_secretkey = keys[0].public, keys[0].secret
    client.curve_serverkey = keys[1].public
    client.connect(f"tcp://127.0.0.1:{pipe.recv()}")
    start_rpc(0, port)
    arrays = {size: np.zeros(size, np.uint8) for size in (SMALL, BULK)}
    tensors = {size: torch.zeros(size, dtype=torch.uint8) for size in (SMALL, BULK)}

    def by_shoal(size: int) -> None:
        mesh.messenger.call("1", "echo", b"", [arrays[size]], deadline=DEADLINE)

    def by_memory(size: int) -> None:
        messenger.call("1", "echo", b"", [arrays[size]], deadline=DEADLINE)

    def by_zmq(size: int) -> None:
        client.send(arrays[size], copy=size == SMALL)
        client.recv()

    def by_rpc(size: int) -> None:
        rpc.rpc_sync("worker1", echo, args=(tensors[size],), timeout=DEADLINE)

    return mesh, [by_shoal, by_memory, by_zmq, by_rpc]


def measure(ways: list[Callable[[int], None]], size: int, repeats: int) -> list[list[float]]:
    """Seconds of each way's turns; the first of each does not count."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):
        for way, spent in zip(ways, seconds, strict=True):
            began = now()
            way(size)
            spent.append(now() - began)
    return [spent[1:] for spent in seconds]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--bulks", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine, port, keys = machine_line(), free_port(), [CurveKeyPair.new(), CurveKeyPair.new()]
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=serve, args=(keys, port, theirs), daemon=True)
    other.start()
    mesh, ways = contestants(keys, port, ours)
    table = Table("bytes", "repeats", *(f"{name}, {unit}" for unit in ("us", "MB/s") for name in CONTESTANTS))
    for size, repeats in ((SMALL, options.calls), (BULK, options.bulks)):
        medians = [statistics.median(spent) for spent in measure(ways, size, repeats)]
        table.add(size, repeats, *(f"{1e6 * s:.0f}" for s in medians), *(f"{size / s / 1e6:.1f}" for s in medians))
    if options.out:
        write_report(options.out, "messenger", "Calls and bulk messages between two processes", [machine], table)
    rpc.shutdown()
    mesh.close()
    other.join(DEADLINE)


if __name__ == "__main__":
    main()
