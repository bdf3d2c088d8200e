"""A server process: a ZeroMQ socket in front of a `ShardHost`, in one thread.

    member ── [number, head, arrays …] ──> ROUTER ──> ShardHost
    member <── [number, head, arrays …] ──┘

It listens at a file of this host, in a folder of the user's alone, so it needs no keys and members are who they say
they are. It runs until its launcher ends it, and keeps nothing: what a run needs to go on is in its checkpoints.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import zmq

from shoal.core.private import check_socket_folder
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import ShardReply, encode

NUMBER = struct.Struct("<q")
LEAST_PARTS = 2
"""Of a message: number and head. One with fewer is dropped."""
LARGEST_PART = 1 << 34
"""Bytes of one message part that are taken at the most."""


def serve_shards(address: str) -> None:
    """Serve at `ipc://…` for as long as the process lives."""
    check_socket_folder(Path(address.removeprefix("ipc://")).parent)
    torch.set_num_threads(1)  # the workers have the cores
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
        socket.send_multipart([member.encode(), NUMBER.pack(number), encode(reply), *arrays], copy=False)

    host = ShardHost(send)
    while True:
        sender, *parts = [part.buffer for part in socket.recv_multipart(copy=False)]
        if len(parts) >= LEAST_PARTS and len(parts[0]) == NUMBER.size:
            name, number = bytes(sender).decode(errors="replace"), NUMBER.unpack(parts[0])[0]
            host.handle(name, number, bytes(parts[1]), parts[LEAST_PARTS:])
