"""Measures a cluster: round trip and rate between every pair of workers, and how fast each computes.

Pairs take turns, so that no measurement disturbs another. The probe's own connections carry a token that only the
group knows; a listener takes one connection, for one measurement.
"""

import hmac
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import torch
from torch._C._distributed_c10d import FileStore

from shoal.core.clock import now
from shoal.core.errors import PeerLost
from shoal.groups.base import WorkerGroup
from shoal.groups.cluster_file import ClusterMeasurement, LinkMeasurement, SpeedMeasurement
from shoal.groups.process_group import TorchGroup

ECHOES = 15
"""Round trips of a pair; the fastest counts."""
BULK_SECONDS = 0.6
"""Seconds of sending; the first half does not count, because the connection is still finding its rate."""
DOUBTFUL = 0.05
"""A link whose rate differs from the middle of all by so much of it is measured again."""
PIECE = 1 << 16
COMPUTE_SECONDS = 0.2
"""For matrix products, by one worker at a time."""
TOKEN = 16
"""Bytes of the token."""
WAIT = 30.0
"""Seconds for the peer of a measurement to connect and answer."""


def probe(group: WorkerGroup, address: str) -> ClusterMeasurement:
    """Measure the whole group; a collective call, the same result on every worker. `address`: where peers find us."""
    token = group.gather(secrets.token_bytes(TOKEN))[0]
    speeds = []
    for rank in range(group.size):
        mine = compute_speed() if rank == group.rank else 0.0
        # One after the other: two workers that compute at once would share memory bandwidth, or a core.
        group.gather(b"")
        speeds.append(mine)
    speed = SpeedMeasurement(
        group.rank, socket.gethostname(), address, round(speeds[group.rank], 2), torch.get_num_threads()
    )
    workers = [msgspec.json.decode(data, type=SpeedMeasurement) for data in group.gather(msgspec.json.encode(speed))]

    def measure(sender: int, receiver: int) -> LinkMeasurement:
        found = _pair(group, sender, receiver, workers[receiver].address, token)
        (text,) = [data for data in group.gather(found) if data]
        return msgspec.json.decode(text, type=LinkMeasurement)

    pairs = [(sender, receiver) for sender in range(group.size) for receiver in range(group.size) if sender != receiver]
    return ClusterMeasurement(workers, repeat_doubtful([measure(*pair) for pair in pairs], measure))


def repeat_doubtful(
    links: Sequence[LinkMeasurement], measure: Callable[[int, int], LinkMeasurement]
) -> list[LinkMeasurement]:
    """Measure a link that differs from most twice again; the middle of the three rates counts.

    A process that had to wait for a core for a tenth of a second makes a link look a third slower than it is, and one
    such link among many would decide forecasts, because a step waits for the slowest. All workers find the same.
    """
    found = []
    usual = median(link.rate_mbit for link in links) if links else 0.0
    for link in links:
        if abs(link.rate_mbit - usual) > DOUBTFUL * usual:
            tries = [link, *(measure(link.sender, link.receiver) for _ in range(2))]
            link = msgspec.structs.replace(
                link, rate_mbit=median(each.rate_mbit for each in tries), rtt_ms=min(each.rtt_ms for each in tries)
            )
        found.append(link)
    return found


def compute_speed() -> float:
    """Return billions of floating-point operations a second in a matrix product."""
    a = torch.randn(512, 512)
    a @ a
    began, times = now(), 0
    while now() - began < COMPUTE_SECONDS:
        a @ a
        times += 1
    return 2 * 512**3 * times / (now() - began) / 1e9


def _pair(group: WorkerGroup, sender: int, receiver: int, address: str, token: bytes) -> bytes:
    """Measure one direction; return the result on the sender, and None on all others."""
    listener = socket.create_server((address, 0)) if group.rank == receiver else None
    port = listener.getsockname()[1] if listener else 0
    # A collective call, so it is also the barrier that keeps pairs in turns.
    port = int(group.gather(str(port).encode())[receiver])
    if listener is not None:
        with listener:
            listener.settimeout(WAIT)
            _answer(listener, token)
    elif group.rank == sender:
        with socket.create_connection((address, port), timeout=WAIT) as connection:
            connection.sendall(token)
            rtt, rate = _echoes(connection), _bulk(connection)
        return msgspec.json.encode(LinkMeasurement(sender, receiver, round(rtt * 1e3, 3), round(rate * 8 / 1e6, 2)))
    return b""


def _echoes(connection: socket.socket) -> float:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(ECHOES):
        began = now()
        connection.sendall(b"e")
        _receive(connection, 1)
        times.append(now() - began)
    return min(times)


def _bulk(connection: socket.socket) -> float:
    """Send for a while; the receiver counts, because sent bytes may still be in a buffer here."""
    piece, began = bytes(PIECE), now()
    while now() - began < BULK_SECONDS:
        connection.sendall(piece)
    connection.shutdown(socket.SHUT_WR)
    return float(_receive(connection, 32).decode())


def _answer(listener: socket.socket, token: bytes) -> None:
    """Answer `_echoes` and `_bulk`; a connection without the token is closed."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(WAIT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Anybody on the network may connect to the listener while it waits for its one connection.
        if not hmac.compare_digest(_receive(connection, TOKEN), token):
            raise PeerLost("a stranger answered the probe; measure again on a network of your own")
        for _ in range(ECHOES):
            connection.sendall(_receive(connection, 1))
        arrivals: list[tuple[float, int]] = []
        while data := connection.recv(PIECE):
            arrivals.append((now(), len(data)))
        connection.sendall(f"{_rate(arrivals):032.3f}".encode())


def _rate(arrivals: list[tuple[float, int]]) -> float:
    """Return the bytes per second of the second half."""
    if len(arrivals) < 2:
        return 0.0
    # The first half is slow start, which a long transfer leaves behind.
    middle = (arrivals[0][0] + arrivals[-1][0]) / 2
    late = [(moment, size) for moment, size in arrivals if moment >= middle]
    seconds = late[-1][0] - late[0][0]
    return sum(size for _, size in late[1:]) / seconds if seconds else 0.0


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise PeerLost("a worker left the probe early; start it again")
        data += piece
    return data


def own_address() -> str:
    """Return the address by which this machine reaches torchrun's rendezvous; loopback if there is none."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dummy:
        dummy.connect((master, 9))  # on a datagram socket this only chooses a route, and sends nothing
        address: str = dummy.getsockname()[0]
    return address


def measure_on_host(say: Callable[[object], None], store: str, rank: int, size: int, address: str) -> None:
    """Measure with the others, in a process on one host of a lab, and report the result."""
    torch.set_num_threads(1)
    cluster = probe(TorchGroup(FileStore(store, size), rank, size), address)
    if rank == 0:
        say(msgspec.to_builtins(cluster))
