"""A worker's connections to the server processes of its run: requests by number, replies in any order.

number = connection.send(server, request, arrays)     never blocks; the arrays stay as they are until the reply
reply, arrays = connection.wait(server, number)       with a deadline; looks meanwhile whether the run goes on

On one host they are sockets in a folder of the user's (`socket_connection.py`), between hosts links under keys
(`link_connection.py`).
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, PayloadError, PeerLost
from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.messages import (
    DeclareRequest,
    FailedReply,
    ShardReply,
    ShardRequest,
    TensorSize,
    WaitReply,
    WhoRequest,
    decode_reply,
    encode,
)

NUMBER = struct.Struct("<q")
TAKEN_OVER = -1
"""In the place of a request's number: the word of a replica that has taken over."""
LARGEST_PART = 1 << 34
"""Bytes of one message part that are taken at the most."""
DECLARE_PORT, SERVED_PORT = "declare", "served"
LOOK_MS = 50
"""Milliseconds between looks at whether the run goes on, in a wait."""
ASK_SECONDS = 5.0
"""Seconds of a wait after which the server is asked for whom, again and again."""
Received = tuple[ShardReply, list[Any]]


def shard_port(channel: int) -> str:
    """Where requests of a channel go, between hosts."""
    return f"shard.{channel}"


class ServerConnection(ABC):
    """Of one worker, used by its training thread; `is_here` may be asked by any."""

    def __init__(self, member: str, board: StatusBoard, seconds: float) -> None:
        self.member, self.board, self.seconds = member, board, seconds
        self._number = 0
        self._expected: set[int] = set()
        self._received: dict[int, Received] = {}
        self._slowest: dict[int, list[str]] = {}
        self._asked: dict[int, int] = {}
        """Number of a request -> its channel."""
        self._channels = 0
        self.sent = self.got = 0
        """Bytes of arrays."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        """Send a request: never blocks."""

    @abstractmethod
    def poll(self, server: int, milliseconds: int = 0) -> None:
        """Take in what has come, waiting at most so long for the first."""

    def close(self) -> None:  # noqa: B027
        """Nothing more is asked here; what was asked needs no answer."""

    def _declare(self, server: int, request: DeclareRequest) -> None:  # noqa: B027
        """Say what will come, where the server wants to know."""

    def _waits_long(self, member: str, seconds: float) -> None:  # noqa: B027
        """This member has been waited for longer than is good."""

    def take_channel(self) -> int:
        """Return a number for an engine or a join: the same on all workers, which ask in the same order."""
        self._channels += 1
        return self._channels - 1

    def declare(self, channel: int, tensors: Sequence[Sequence[TensorSize]]) -> None:
        """Say which arrays a channel will have at each server, before anything is sent on it."""
        for server, sizes in enumerate(tensors):
            self._declare(server, DeclareRequest(channel, tuple(sizes)))

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory for arrays that are sent, and for those of replies: where servers reach it, if they can."""
        return np.zeros(size, np.uint8)

    def _land(self, number: int, landing: Any) -> None:  # noqa: B027
        """The arrays of the reply to this request may be put there."""

    def send(self, server: int, request: ShardRequest, arrays: Sequence[Any] = (), landing: Any = None) -> int:
        """`landing`: memory that the arrays of the reply may be put into, and that nothing else uses until it is here;
        they may come elsewhere all the same."""
        self._number += 1
        # before it leaves, because another thread may take the reply in at once
        self._expected.add(self._number)
        self._asked[self._number] = request.channel
        if landing is not None:
            self._land(self._number, landing)
        self._transmit(server, request.channel, NUMBER.pack(self._number) + encode(request), arrays)
        self.sent += sum(memoryview(array).nbytes for array in arrays)
        return self._number

    def forget(self, number: int) -> None:
        """Drop the reply to a request, now or when it comes."""
        self._expected.discard(number)
        self._received.pop(number, None)
        self._slowest.pop(number, None)
        self._asked.pop(number, None)

    def _take(self, server: int, number: int, head: bytes, arrays: list[Any]) -> None:
        # forgotten, or answered a second time by the process that took over
        if number not in self._expected:
            return
        reply = decode_reply(head, f"server {server}")
        self.got += sum(memoryview(array).nbytes for array in arrays)
        if isinstance(reply, WaitReply):
            self._slowest[number] = list(reply.slowest)
            return
        self._received[number] = (reply, arrays)
        self._expected.discard(number)

    def is_here(self, number: int) -> bool:
        """Whether the final reply has been taken in."""
        return number in self._received

    def wait(self, server: int, number: int, look: Callable[[], None] = lambda: None) -> Received:
        """Return the final reply to a request. `look` is called now and then, and may raise."""
        deadline, ask = Deadline.after(self.seconds), Deadline.after(ASK_SECONDS)
        while not self.is_here(number):
            self.poll(server, LOOK_MS)
            look()
            if self.board.aborted is not None:
                raise PeerLost(f"{self.member} stops: worker {self.board.aborted} is lost")
            if ask.expired:
                ask = Deadline.after(ASK_SECONDS)
                self._ask_for_whom(server, number)
            # at half, so that a member that keeps others waiting is evicted before they give up
            if deadline.left < deadline.budget / 2:
                for member in self._slowest.get(number, []):
                    self._waits_long(member, deadline.budget - deadline.left)
            if deadline.expired:
                raise DeadlineError(self._describe(server, number))
        self._asked.pop(number, None)
        reply, arrays = self._received.pop(number)
        if isinstance(reply, FailedReply):
            raise PayloadError(f"server {server} refuses what {self.member} asks for: {reply.text}")
        return reply, arrays

    def _ask_for_whom(self, server: int, number: int) -> None:
        channel = self._asked.get(number, 0)
        self._number += 1
        # the answer comes under the number of the request that waits
        self._transmit(server, channel, NUMBER.pack(self._number) + encode(WhoRequest(number, channel)), ())

    def take_slowest(self, number: int) -> list[str]:
        """Return the members that a request waits for, or has waited for; empty if it did not have to."""
        return self._slowest.pop(number, [])

    def _describe(self, server: int, number: int) -> str:
        whom = ", ".join(self.take_slowest(number)) or f"server {server}"
        return (
            f"{self.member} has waited {self.seconds:.0f} s for {whom}; "
            "raise SHOAL_DEADLINE (seconds) if its step is really that long"
        )
