"""Virtual time for workers that are threads, and connections to a server in the same process.

One thread runs at a time: the one whose time is lowest. Computing takes the seconds that it says, messages none, and
replies `delay` of their connection.
"""

import heapq
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from shoal.sync.server.messages import ShardReply, ShardRequest, WaitReply, encode

Handle = Callable[[str, int, bytes, Sequence[Any]], None]
"""A host's."""


class VirtualTime:
    """Lets one thread run after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, threading.Semaphore]] = []
        self._ids, self._idle = count(), threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def start(self, body: Callable[[], None]) -> None:
        turn = threading.Semaphore(0)

        def run() -> None:
            turn.acquire()
            try:
                body()
            except Exception as error:  # noqa: BLE001 (raised again by `run`)
                self._errors.append(error)
            finally:
                self._idle.release()

        threading.Thread(target=run, daemon=True).start()
        self.wake(turn)

    def wake(self, turn: threading.Semaphore, seconds: float = 0.0) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._ids), turn))

    def sleep(self, seconds: float) -> None:
        turn = threading.Semaphore(0)
        self.wake(turn, seconds)
        self.park(turn)

    def park(self, turn: threading.Semaphore) -> None:
        """Until somebody wakes it."""
        self._idle.release()
        turn.acquire()

    def run(self) -> None:
        while self._due:
            self.now, _, turn = heapq.heappop(self._due)
            turn.release()
            self._idle.acquire()
            if self._errors:
                raise self._errors[0]


class VirtualConnection:
    """In the place of a `ServerConnection`, to a host in the same process."""

    sent = got = 0

    def __init__(self, time: VirtualTime, member: str, handle: Handle, delay: float = 0.0) -> None:
        self._time, self._member, self._handle, self._delay = time, member, handle, delay
        self.waited = 0.0
        """Seconds in which replies were waited for."""
        self._due: dict[int, float] = {}
        self._replies: dict[int, tuple[ShardReply, list[Any]]] = {}
        self._slowest: dict[int, list[str]] = {}
        self._waits: dict[int, threading.Semaphore] = {}
        self._number = 0

    def __len__(self) -> int:
        return 1

    def take_channel(self) -> int:
        return 0

    def declare(self, *what: object) -> None:
        """This host takes what comes."""

    def allocate(self, size: int) -> Any:
        return np.zeros(size, np.uint8)

    def send(self, server: int, request: ShardRequest, arrays: Sequence[Any] = (), landing: Any = None) -> int:
        self._number += 1
        copies = [memoryview(np.array(array)).cast("B") for array in arrays]
        self._handle(self._member, self._number, encode(request), copies)
        return self._number

    def hear(self, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        if isinstance(reply, WaitReply):
            self._slowest[number] = list(reply.slowest)
            return
        self._replies[number] = reply, [memoryview(np.array(array)).cast("B") for array in arrays]
        self._due[number] = self._time.now + self._delay
        if number in self._waits:
            self._time.wake(self._waits.pop(number))

    def wait(self, server: int, number: int, look: Any = None) -> tuple[ShardReply, list[Any]]:
        if number not in self._replies:
            began, self._waits[number] = self._time.now, threading.Semaphore(0)
            self._time.park(self._waits[number])
            self.waited += self._time.now - began
        left = self._due.pop(number) - self._time.now
        if left > 0:
            self.waited += left
            self._time.sleep(left)
        return self._replies.pop(number)

    def is_here(self, number: int) -> bool:
        return number in self._replies and self._due[number] <= self._time.now

    def forget(self, number: int) -> None:
        self._replies.pop(number, None)

    def poll(self, server: int, milliseconds: int = 0) -> None:
        """Everything is here at once."""

    def take_slowest(self, number: int) -> list[str]:
        return self._slowest.pop(number, [])
