"""A server process of one host: a ZeroMQ socket in front of a `ShardHost`, in one thread.

    member ── [number and head, places, arrays …] ──> ROUTER ──> ShardHost
    member <── [number and head, sizes, arrays …] ──┘
    arrays lie in the members' own memory, which the server maps (`member_areas.py`)

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

from shoal.core.errors import PayloadError
from shoal.core.private import check_socket_folder
from shoal.launch.services import ServiceSeat
from shoal.sync.server.connection import LARGEST_PART, NUMBER
from shoal.sync.server.host import Send, ShardHost
from shoal.sync.server.link_replica import LinkReplicaServer
from shoal.sync.server.link_server import LinkShardServer
from shoal.sync.server.member_areas import MemberAreas
from shoal.sync.server.messages import FailedReply, ShardReply, WaitReply, encode
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
    poller = zmq.Poller()
    areas = MemberAreas(address, poller)  # first: who sees the server's file may hand memory over
    socket = _bind(address)
    poller.register(socket, zmq.POLLIN)

    def send(member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        parts = areas.write(member, number, arrays, is_last=not isinstance(reply, WaitReply))
        # a member that is gone has no connection: ROUTER drops what is for it
        socket.send_multipart([member.encode(), NUMBER.pack(number) + encode(reply), *parts], copy=False)

    host = ShardHost(send, codec=codec, shares=True)
    while True:
        host.take_overdue()  # before what has come meanwhile, which would be late under a timer of its own
        ready = dict(poller.poll(round(1e3 * host.seconds_left(LOOK))))
        if socket in ready:
            _take_request(host, areas, send, [part.buffer for part in socket.recv_multipart(copy=False)])
        if len(ready) > (socket in ready):
            areas.take_in()


def _bind(address: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    # no high-water marks: a ROUTER that reaches one drops messages
    for option, value in ((zmq.LINGER, 0), (zmq.MAXMSGSIZE, LARGEST_PART), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
        socket.setsockopt(option, value)
    socket.bind(address)
    os.chmod(address.removeprefix("ipc://"), 0o600)
    return socket


def _take_request(host: ShardHost, areas: MemberAreas, send: Send, parts: list[Any]) -> None:
    sender, *message = parts
    if len(message) < 2 or len(message[0]) <= NUMBER.size:
        return  # no request, and no number to answer it by
    member, (number,) = bytes(sender).decode(errors="replace"), NUMBER.unpack_from(message[0])
    try:
        arrays = areas.read(member, number, bytes(message[1]), message[2:])
    except PayloadError as error:
        send(member, number, FailedReply(str(error)[:1024]), [])
        return
    host.handle(member, number, bytes(message[0][NUMBER.size :]), arrays)
