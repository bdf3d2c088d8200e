"""Measures links of a lab from inside its hosts: round trips, rate, and what became of each datagram.

round trip   UDP echo              rate   TCP in bulk, after its start              fate   UDP, counted
"""

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
from typing import TYPE_CHECKING

import msgspec

from shoal.cluster.lab.host import FRAME
from shoal.cluster.lab.inside import Say, inside
from shoal.core import clock
from shoal.core.clock import Deadline

if TYPE_CHECKING:
    from shoal.cluster.lab.lab import Lab

PAYLOAD = 1448
"""Bytes of TCP's payload in a full frame: 20 for IP, 20 for TCP and 12 for its timestamps go off the 1500."""
DATAGRAM = 100
HEADERS = 42
"""Bytes of Ethernet, IP and UDP before a datagram's payload."""
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


def round_trips(lab: "Lab", source: int, target: int, count: int = 40, interval: float = 0.01) -> list[float]:
    """Seconds that each of `count` echoes took; lost ones are left out."""
    address = lab.hosts[target].address
    patience = 0.5 + 4 * (_longest(lab, source) + _longest(lab, target))
    with inside(lab, target, _echo) as server:
        where = (address, int(server.hear()))
        with inside(lab, source, _ping, where, count, interval, patience) as client:
            return [float(each) for each in client.hear(30 + count * interval + patience)]


def rate(lab: "Lab", source: int, target: int, seconds: float = 1.0, start: float = 0.5) -> float:
    """Bit/s of full frames that one TCP flow brings across, from `start` seconds after its begin."""
    with inside(lab, target, _sink, start, seconds) as server:
        where = (lab.hosts[target].address, int(server.hear()))
        with inside(lab, source, _source, where):
            return float(server.hear(30 + start + seconds)) * 8 * FRAME / PAYLOAD


def fate(
    lab: "Lab", source: int, target: int, count: int = 5000, per_second: float = 10_000, checked: bool = True
) -> Fate:
    """Send numbered datagrams and count; `checked=False` sends them without a checksum, so that damage arrives."""
    patience = 0.2 + 2 * (_longest(lab, source) + _longest(lab, target))
    with mmap.mmap(-1, 1) as all_sent, inside(lab, target, _count, count, patience, all_sent) as server:
        where = (lab.hosts[target].address, int(server.hear()))
        with inside(lab, source, _shower, where, count, per_second, checked) as client:
            client.hear(30 + count / per_second)
            all_sent[0] = 1
            return msgspec.convert(server.hear(30 + patience), Fate)


def _longest(lab: "Lab", host: int) -> float:
    return lab.link(host).delay.seconds + lab.link(host).jitter.seconds


def _echo(say: Say) -> None:
    _on_time()
    with _bound(socket.SOCK_DGRAM, say) as s:
        while True:
            data, sender = s.recvfrom(2048)
            s.sendto(data, sender)


def _ping(say: Say, where: tuple[str, int], count: int, interval: float, patience: float) -> None:
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


def _source(say: Say, where: tuple[str, int]) -> None:
    _on_time()
    block = bytes(1 << 17)
    # The sink closes while data is under way, which the kernel answers with a reset.
    with suppress(ConnectionError), socket.create_connection(where) as s:
        while True:
            s.sendall(block)


def _sink(say: Say, start: float, seconds: float) -> None:
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


def _shower(say: Say, where: tuple[str, int], count: int, per_second: float, checked: bool) -> None:
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


def _count(say: Say, count: int, patience: float, all_sent: mmap.mmap) -> None:
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
