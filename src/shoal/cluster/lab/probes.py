"""What runs inside the hosts while a lab is measured: each function in a forked child, which `say`s its result."""

import itertools
import mmap
import os
import select
import socket
import statistics
import struct
import time
from collections import Counter
from contextlib import suppress

import msgspec

from shoal.cluster.lab.inside import Say
from shoal.core import clock
from shoal.core.clock import Deadline

DATAGRAM = 100
"""Bytes of a counted datagram's payload, rounded down to whole numbers of 8 bytes."""
_BUFFER = 8 << 20
_RECEIVE_FORCED = 33
_NO_CHECKSUM = 11
_WINDOWS = 6
_NUMBER = struct.Struct("!Q")


class Fate(msgspec.Struct, frozen=True):
    """What became of the datagrams that were sent."""

    sent: int
    received: int
    """Different ones that arrived."""
    duplicates: int
    damaged: int
    """Arrived with another payload than was sent."""
    bursts: int
    """Runs of datagrams lost in a row."""
    reordered: int

    @property
    def loss(self) -> float:
        return 1 - self.received / self.sent

    @property
    def mean_burst(self) -> float:
        """Mean number lost in a row."""
        return (self.sent - self.received) / self.bursts if self.bursts else 0.0


def echo(say: Say) -> None:
    _on_time()
    with _bound(socket.SOCK_DGRAM, say) as s:
        while True:
            data, sender = s.recvfrom(2048)
            s.sendto(data, sender)


def ping(say: Say, where: tuple[str, int], count: int, interval: float, patience: float) -> None:
    _on_time()
    times: dict[int, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(where)
        begun = clock.now()
        sent: list[float] = []
        while len(times) < count and clock.now() < begun + count * interval + patience:
            next_at = begun + len(sent) * interval
            if len(sent) < count and clock.now() >= next_at:
                sent.append(clock.now())
                s.send(_NUMBER.pack(len(sent) - 1))
            elif select.select([s], [], [], max(0.0, next_at - clock.now()) if len(sent) < count else 0.05)[0]:
                number = _NUMBER.unpack(s.recv(2048))[0]
                times.setdefault(number, clock.now() - sent[number])
    say(list(times.values()))


def source(say: Say, where: tuple[str, int]) -> None:
    _on_time()
    block = bytes(1 << 17)
    # The sink closes while data is under way, which the kernel answers with a reset.
    with suppress(ConnectionError), socket.create_connection(where) as s:
        while True:
            s.sendall(block)


def sink(say: Say, start: float, seconds: float) -> None:
    """The median of some windows: a moment in which this machine had no time for us says nothing of the link."""
    _on_time()
    with _bound(socket.SOCK_STREAM, say) as listener:
        connection, _ = listener.accept()
        _arriving(connection, start)
        say(statistics.median(_arriving(connection, seconds / _WINDOWS) for _ in range(_WINDOWS)))


def _arriving(connection: socket.socket, seconds: float) -> float:
    """Bytes per second over about that time."""
    buffer = bytearray(1 << 20)
    begun, got, deadline = clock.now(), 0, Deadline.after(seconds)
    while not deadline.expired:
        got += connection.recv_into(buffer)
    return got / (clock.now() - begun)


def shower(say: Say, where: tuple[str, int], count: int, per_second: float, checked: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        if not checked:
            s.setsockopt(socket.SOL_SOCKET, _NO_CHECKSUM, 1)
        s.connect(where)
        begun = clock.now()
        for number in range(count):
            early = begun + number / per_second - clock.now()
            if early > 0.001:  # in small groups: a sleep for each would take longer than meant
                time.sleep(early)
            s.send(_datagram(number))
    say(count)


def count(say: Say, count: int, patience: float, all_sent: mmap.mmap) -> None:
    """Ends when all is sent and nothing has come for `patience` seconds."""
    arrived: list[bytes] = []
    with _bound(socket.SOCK_DGRAM, say) as s:
        silence = Deadline.after(patience)
        while not silence.expired:
            heard = bool(select.select([s], [], [], 0.01)[0])
            if heard:
                arrived.append(s.recv(2048))
            if heard or not all_sent[0]:
                silence = Deadline.after(patience)
    say(_sum_up(arrived, count))


def _sum_up(arrived: list[bytes], count: int) -> Fate:
    # A flipped bit may hit the number: whatever is not exactly what was sent counts as damaged, and nowhere else.
    numbers = [_NUMBER.unpack_from(data)[0] for data in arrived]
    whole = [number for number, data in zip(numbers, arrived, strict=True) if data == _datagram(number)]
    seen = Counter(whole)
    lost = [number not in seen for number in range(count)]
    bursts = sum(here and not before for before, here in zip([False, *lost], lost, strict=False))
    reordered = sum(second < first for first, second in itertools.pairwise(whole))
    return Fate(count, len(seen), len(whole) - len(seen), len(arrived) - len(whole), bursts, reordered)


def _datagram(number: int) -> bytes:
    return _NUMBER.pack(number) * (DATAGRAM // _NUMBER.size)


def _bound(kind: socket.SocketKind, say: Say) -> socket.socket:
    """A socket that listens on some port, which is said."""
    s = socket.socket(socket.AF_INET, kind)
    if kind == socket.SOCK_DGRAM:  # as root, beyond the system's limit: a busy reader must lose nothing
        s.setsockopt(socket.SOL_SOCKET, _RECEIVE_FORCED, _BUFFER)
    s.bind(("", 0))
    if kind == socket.SOCK_STREAM:
        s.listen()
    say(s.getsockname()[1])
    return s


def _on_time() -> None:
    """What is measured is the link, not who else computes on this machine."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
