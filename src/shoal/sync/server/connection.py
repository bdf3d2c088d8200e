"""A worker's connections to the server processes of its run: requests by number, replies in any order.

number = connection.send(server, request, arrays)     never blocks; the arrays stay as they are until the reply
reply, arrays = connection.wait(server, number)       with a deadline; looks meanwhile whether the run goes on
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, PayloadError, PeerLost
from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.messages import FailedReply, ShardReply, ShardRequest, WaitReply, decode_reply, encode
from shoal.sync.server.process import LARGEST_PART, NUMBER

LOOK_MS = 50
"""Milliseconds between looks at whether the run goes on, in a wait."""
Received = tuple[ShardReply, list[Any]]


class ServerConnection:
    """Of one worker, used by its training thread; `is_here` may be asked by any."""

    def __init__(self, addresses: Sequence[str], member: str, board: StatusBoard, seconds: float) -> None:
        self.addresses, self.member, self.board, self.seconds = tuple(addresses), member, board, seconds
        self._sockets: list[zmq.Socket[bytes]] = []
        self._owner = 0
        self._number = 0
        self._expected: set[int] = set()
        self._received: dict[int, Received] = {}
        self._slowest: dict[int, list[str]] = {}
        self._channels = 0
        self.sent = self.got = 0
        """Bytes of arrays."""

    def __len__(self) -> int:
        return len(self.addresses)

    def take_channel(self) -> int:
        """Return a number for an engine or a join: the same on all workers, which ask in the same order."""
        self._channels += 1
        return self._channels - 1

    def _open(self) -> list["zmq.Socket[bytes]"]:
        if self._owner != os.getpid():  # not before the fork: a socket belongs to one process
            context = zmq.Context()
            self._owner, self._sockets = os.getpid(), [self._connect(context, each) for each in self.addresses]
        return self._sockets

    def _connect(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, 10),
            (zmq.MAXMSGSIZE, LARGEST_PART),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IDENTITY, self.member.encode())
        socket.connect(address)
        return socket

    def send(self, server: int, request: ShardRequest, arrays: Sequence[Any] = ()) -> int:
        self._number += 1
        self._expected.add(self._number)
        # a reference to the arrays, not a copy, where they are large
        self._open()[server].send_multipart([NUMBER.pack(self._number), encode(request), *arrays], copy=False)
        self.sent += sum(memoryview(array).nbytes for array in arrays)
        return self._number

    def forget(self, number: int) -> None:
        """Drop the reply to a request, now or when it comes."""
        self._expected.discard(number)
        self._received.pop(number, None)
        self._slowest.pop(number, None)

    def poll(self, server: int, milliseconds: int = 0) -> None:
        """Take in what has come, waiting at most so long for the first."""
        socket = self._open()[server]
        while socket.poll(milliseconds):
            milliseconds = 0
            number, head, *arrays = socket.recv_multipart(copy=False)
            self._take(server, NUMBER.unpack(number.buffer)[0], bytes(head.buffer), [part.buffer for part in arrays])

    def _take(self, server: int, number: int, head: bytes, arrays: list[Any]) -> None:
        if number not in self._expected:
            return
        reply = decode_reply(head, f"server {server}")
        self.got += sum(memoryview(array).nbytes for array in arrays)
        if isinstance(reply, WaitReply):
            self._slowest[number] = list(reply.slowest)
            return
        self._expected.discard(number)
        self._received[number] = (reply, arrays)

    def is_here(self, number: int) -> bool:
        """Whether the final reply has been taken in."""
        return number in self._received

    def wait(self, server: int, number: int, look: Callable[[], None] = lambda: None) -> Received:
        """Return the final reply to a request. `look` is called now and then, and may raise."""
        deadline = Deadline.after(self.seconds)
        while not self.is_here(number):
            self.poll(server, LOOK_MS)
            look()
            if self.board.aborted is not None:
                raise PeerLost(f"{self.member} stops: worker {self.board.aborted} is lost")
            if deadline.expired:
                raise DeadlineError(self._describe(server, number))
        reply, arrays = self._received.pop(number)
        if isinstance(reply, FailedReply):
            raise PayloadError(f"server {server} refuses what {self.member} asks for: {reply.text}")
        return reply, arrays

    def take_slowest(self, number: int) -> list[str]:
        """Return the members that a pull waits for, or has waited for; empty if it did not have to."""
        return self._slowest.pop(number, [])

    def _describe(self, server: int, number: int) -> str:
        whom = ", ".join(self.take_slowest(number)) or f"server {server}"
        return (
            f"{self.member} has waited {self.seconds:.0f} s for {whom}; "
            "raise SHOAL_DEADLINE (seconds) if its step is really that long"
        )
