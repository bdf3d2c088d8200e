"""The functions that measure a lab from inside its hosts, each in a forked child that `say`s its result."""

import fcntl
import itertools
import mmap
import os
import select
import socket
import struct
import termios
import time
from collections import Counter
from contextlib import suppress

import msgspec

from shoal.core import clock
from shoal.core.clock import Deadline
from shoal.lab.inside import Say

DATAGRAM = 100
"""Bytes of a counted datagram's payload, rounded down to whole numbers of 8 bytes."""
_BUFFER = 8 << 20
# SO_RCVBUFFORCE and SO_NO_CHECK of Linux, which Python's socket module does not name.
_RECEIVE_FORCED = 33
_NO_CHECKSUM = 11
_WINDOWS = 8
_MOST_IN_HAND = 1 << 20
_NUMBER = struct.Struct("!Q")


class DatagramFate(msgspec.Struct, frozen=True):
    """The fate of the datagrams that were sent."""

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
    """The second-best of some windows.

    In a window in which this machine had no time for sender, switch or reader, less arrives than the link could carry;
    it says nothing of the link. More arrives only right after the switch was late, by as much as it was late.
    """
    _on_time()
    with _bound(socket.SOCK_STREAM, say) as listener:
        connection, _ = listener.accept()
        _, begun = _read_for(connection, start, clock.now())
        rates = []
        for _ in range(_WINDOWS):
            got, ended = _read_for(connection, seconds / _WINDOWS, begun)
            rates.append(got / (ended - begun))
            begun = ended
        say(sorted(rates)[-2])


def _read_for(connection: socket.socket, seconds: float, begun: float) -> tuple[int, float]:
    """Bytes that arrived from `begun` until a moment at least so much later, and that moment.

    At the moment nothing was left to read: so a reader that was late does not find old bytes in its next window.
    """
    buffer = bytearray(_MOST_IN_HAND)
    got = 0
    while True:
        moment = clock.now()
        if moment >= begun + seconds and not _waiting(connection):
            return got, moment
        more = connection.recv_into(buffer)
        if not more:
            raise ConnectionError("the sender left before the rate was measured; measure again")
        got += more


def _waiting(connection: socket.socket) -> int:
    """Bytes that have arrived and were not read."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), "little")


def shower(say: Say, where: tuple[str, int], count: int, per_second: float, checked: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        if not checked:
            s.setsockopt(socket.SOL_SOCKET, _NO_CHECKSUM, 1)
        s.connect(where)
        begun = clock.now()
        for number in range(count):
            early = begun + number / per_second - clock.now()
            if early > 0.001:  # in small groups: a sleep for each would take longer than meant
                # The next sends then catch up: the mean rate is kept.
                time.sleep(early)
            s.send(_datagram(number))
    say(count)


def count(say: Say, count: int, patience: float, all_sent: mmap.mmap) -> None:
    """Ends when all is sent and nothing has come for `patience` seconds."""
    _on_time()
    arrived: list[bytes] = []
    with _bound(socket.SOCK_DGRAM, say) as s:
        silence = Deadline.after(patience)
        while True:
            if select.select([s], [], [], 0.01)[0]:  # looked at last: a reader that was late finds what has come
                arrived.append(s.recv(2048))
                silence = Deadline.after(patience)
            elif not all_sent[0]:
                silence = Deadline.after(patience)
            elif silence.expired:
                break
    say(_sum_up(arrived, count))


def _sum_up(arrived: list[bytes], count: int) -> DatagramFate:
    # A flipped bit may hit the number: whatever is not exactly what was sent counts as damaged, and nowhere else.
    numbers = [_NUMBER.unpack_from(data)[0] for data in arrived]
    whole = [number for number, data in zip(numbers, arrived, strict=True) if data == _datagram(number)]
    seen = Counter(whole)
    lost = [number not in seen for number in range(count)]
    bursts = sum(here and not before for before, here in zip([False, *lost], lost, strict=False))
    reordered = sum(second < first for first, second in itertools.pairwise(whole))
    return DatagramFate(count, len(seen), len(whole) - len(seen), len(arrived) - len(whole), bursts, reordered)


def _datagram(number: int) -> bytes:
    return _NUMBER.pack(number) * (DATAGRAM // _NUMBER.size)


def _bound(kind: socket.SocketKind, say: Say) -> socket.socket:
    """Listen on a free port, and report it."""
    s = socket.socket(socket.AF_INET, kind)
    if kind == socket.SOCK_DGRAM:  # as root, beyond the system's limit: a busy reader must lose nothing
        s.setsockopt(socket.SOL_SOCKET, _RECEIVE_FORCED, _BUFFER)
    s.bind(("", 0))
    if kind == socket.SOCK_STREAM:
        s.listen()
    say(s.getsockname()[1])
    return s


def _on_time() -> None:
    """Raise this process's priority, so that the measurement shows the link, and not other load on the machine."""
    # The lowest real-time priority: above all normal processes, below the kernel's own threads.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
