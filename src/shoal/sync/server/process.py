"""A server process of one host: a ZeroMQ socket in front of a `ShardHost`, in one thread.

    member ── [number and head, arrays …] ──> ROUTER ──> ShardHost
    member <── [number and head, arrays …] ──┘

It listens at a file of this host, in a folder of the user's alone, so it needs no keys and members are who they say
they are; between hosts there is `link_server.py`. It runs until its launcher ends it, and keeps nothing: what a run
needs to go on is in its checkpoints.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import zmq

from shoal.core.private import check_socket_folder
from shoal.launch.services import ServiceSeat
from shoal.sync.server.connection import LARGEST_PART, NUMBER
from shoal.sync.server.host import ShardHost
from shoal.sync.server.link_replica import LinkReplicaServer
from shoal.sync.server.link_server import LinkShardServer
from shoal.sync.server.messages import ShardReply, encode
from shoal.sync.server.replica_process import ReplicaProcess
from shoal.wire.codec import GradientCodec

LOOK = 1.0
"""Seconds for which the server sleeps at the most while nobody asks for anything."""


def serve_shards(seat: ServiceSeat, codec: GradientCodec | None = None) -> None:
    """Serve for as long as the process lives, at a file of this host or, under keys, at a port. `codec`: of pushes."""
    torch.set_num_threads(1)  # the workers have the cores
    if seat.keys is None and seat.replica is not None:
        ReplicaProcess(seat, codec).serve()
    elif seat.keys is None:
        serve_at_file(seat.address, codec)
    elif seat.replica is not None:
        LinkReplicaServer(seat, codec).serve()
    else:
        LinkShardServer(seat, codec).serve()


def serve_at_file(address: str, codec: GradientCodec | None = None) -> None:
    """Serve at `ipc://…`."""
    check_socket_folder(Path(address.removeprefix("ipc://")).parent)
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_PART)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(address)
    os.chmod(address.removeprefix("ipc://"), 0o600)

    def send(member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        # a member that is gone has no connection: ROUTER drops what is for it
        socket.send_multipart([member.encode(), NUMBER.pack(number) + encode(reply), *arrays], copy=False)

    host = ShardHost(send, codec=codec)
    while True:
        host.take_overdue()  # before what has come meanwhile, which would be late under a timer of its own
        if not socket.poll(round(1e3 * host.seconds_left(LOOK))):
            continue
        sender, *parts = [part.buffer for part in socket.recv_multipart(copy=False)]
        if parts and len(parts[0]) > NUMBER.size:
            name, (number,) = bytes(sender).decode(errors="replace"), NUMBER.unpack_from(parts[0])
            host.handle(name, number, bytes(parts[0][NUMBER.size :]), parts[1:])
