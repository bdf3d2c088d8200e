"""One of the two processes of a replicated server: sockets round a `ReplicatedHost`, in one thread.

    member ── [oldest, number and head, arrays …] ──> primary, at the server's file
    backup ── ReplicaHello, EntryHeld ──────────────> primary, at a file of its own start
    launcher ── ReplicaPromoted, ReplicaAlone ──────> both, over a pair of sockets

Files lie in a folder of the user's alone, so nobody else can connect. A promoted backup takes the server's file over;
the launcher promotes it only after it has seen the primary dead, so two never listen there.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from shoal.core.private import check_socket_folder
from shoal.launch.service_channel import ReplicaAlone, ReplicaPromoted, ReplicaReady
from shoal.launch.services import ServiceSeat
from shoal.sync.server.connection import LARGEST_PART, NUMBER
from shoal.sync.server.messages import ShardReply, encode
from shoal.sync.server.replica_messages import (
    EntryHeld,
    ReplicaHello,
    ReplicaWord,
    StateEntry,
    decode_word,
    encode_word,
)
from shoal.sync.server.replicated_host import ReplicatedHost
from shoal.wire.codec import GradientCodec

LOOK = 1.0
"""Seconds after which the launcher is looked for again."""
PAUSE = 0.01
MOST_AT_ONCE = 64
"""Messages taken from one socket before the others are looked at."""


class ReplicaProcess:
    """Of one start of a server."""

    def __init__(self, seat: ServiceSeat, codec: GradientCodec | None = None) -> None:
        """`codec`: of pushes."""
        assert seat.channel is not None
        assert seat.replica is not None
        check_socket_folder(Path(seat.address.removeprefix("ipc://")).parent)
        self._seat, self._launcher, self._start = seat, seat.channel, seat.replica.start
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(self._launcher.fileno(), zmq.POLLIN)
        self._term = 0
        backs = seat.replica.backs
        self._host = ReplicatedHost(self._answer, self._ship, is_primary=backs is None, codec=codec)
        self._members: zmq.Socket[bytes] | None = None
        self._upstream: zmq.Socket[bytes] | None = None
        """A backup's connection to its primary."""
        self._backups: zmq.Socket[bytes] | None = None
        if backs is None:
            self._lead()
        else:
            self._upstream = self._socket(zmq.DEALER)
            self._upstream.setsockopt(zmq.IDENTITY, str(self._start).encode())
            self._upstream.connect(log_address(seat, backs))
            self._upstream.send(encode_word(ReplicaHello()))
            self._poller.register(self._upstream, zmq.POLLIN)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        # no high-water marks: a ROUTER that reaches one drops messages
        for option, value in ((zmq.LINGER, 0), (zmq.MAXMSGSIZE, LARGEST_PART), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
            socket.setsockopt(option, value)
        return socket

    def _lead(self) -> None:
        """Answer members, and wait for a backup."""
        self._members = self._bind(self._seat.address)
        self._backups = self._bind(log_address(self._seat, self._start))

    def _bind(self, address: str) -> "zmq.Socket[bytes]":
        socket = self._socket(zmq.ROUTER)
        socket.bind(address)
        os.chmod(address.removeprefix("ipc://"), 0o600)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def serve(self) -> None:
        """Until the launcher ends this process, or is gone."""
        while not self._launcher.over:
            if self._host.is_primary:
                self._host.take_overdue()  # before what has come meanwhile, which would be late under another timer
            self._poller.poll(round(1e3 * self._host.host.seconds_left(LOOK)))
            # first, because a promotion changes which sockets there are
            self._hear_launcher()
            self._take(self._upstream, self._follow)
            self._take(self._backups, self._hear_backup)
            self._take(self._members, self._hear_member)

    def _take(self, socket: "zmq.Socket[bytes] | None", use: Callable[[list[Any]], None]) -> None:
        for _ in range(MOST_AT_ONCE):
            # a promotion closes the connection to the primary in the middle
            if socket is None or socket.closed or not socket.poll(0):
                return
            use([part.buffer for part in socket.recv_multipart(copy=False)])

    def _hear_launcher(self) -> None:
        while not self._launcher.over and (word := self._launcher.hear()) is not None:
            if isinstance(word, ReplicaAlone):
                self._host.go_alone()
            elif isinstance(word, ReplicaPromoted):
                self._take_over(word.term)

    def _take_over(self, term: int) -> None:
        """What the dead primary has sent and was not read yet, members send again: nobody had an answer to it."""
        assert self._upstream is not None
        self._poller.unregister(self._upstream)
        self._upstream.close(linger=0)
        self._term, self._upstream = term, None
        self._host.promote()
        self._lead()

    def _follow(self, parts: list[Any]) -> None:
        assert self._upstream is not None
        word = decode_word(bytes(parts[0]))
        held = self._host.take(word, parts[1:])
        if isinstance(word, StateEntry):
            while not self._launcher.say(ReplicaReady()):  # before anybody is answered because of it
                time.sleep(PAUSE)
        self._upstream.send(encode_word(held))

    def _hear_backup(self, parts: list[Any]) -> None:
        start, word = int(bytes(parts[0])), decode_word(bytes(parts[1]))
        if isinstance(word, ReplicaHello):
            self._host.begin_backup(start)
        elif isinstance(word, EntryHeld):
            self._host.note_held(start, word.index)

    def _hear_member(self, parts: list[Any]) -> None:
        sender, *message = parts
        member, _, term = bytes(sender).decode(errors="replace").rpartition(" ")
        if term != str(self._term) or not message or len(message[0]) <= 2 * NUMBER.size:
            return  # of an older connection, or no request
        (oldest,), (number,) = NUMBER.unpack_from(message[0]), NUMBER.unpack_from(message[0], NUMBER.size)
        self._host.request(member, number, oldest, bytes(message[0][2 * NUMBER.size :]), message[1:])

    def _answer(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        # a member that has not connected yet asks again, and is answered from what was kept
        assert self._members is not None
        name = f"{member} {self._term}".encode()
        self._members.send_multipart([name, NUMBER.pack(number) + encode(reply), *arrays], copy=False)

    def _ship(self, start: int, word: ReplicaWord, parts: Sequence[Any]) -> None:
        assert self._backups is not None
        self._backups.send_multipart([str(start).encode(), encode_word(word), *parts], copy=False)


def log_address(seat: ServiceSeat, start: int) -> str:
    """Where backups of the process of this start connect to it."""
    return f"{seat.address}.{start}"
