"""Measures links of a lab from inside its hosts: round trips, rate, and what became of each datagram.

round trip   UDP echo              rate   TCP in bulk, after its start              fate   UDP, counted
"""

import mmap
from typing import TYPE_CHECKING

import msgspec

from shoal.lab import probes
from shoal.lab.host import FRAME
from shoal.lab.inside import inside
from shoal.lab.probes import DatagramFate

if TYPE_CHECKING:
    from shoal.lab.lab import NetworkLab


PAYLOAD = 1448
"""Bytes of TCP's payload in a full frame: 20 for IP, 20 for TCP and 12 for its timestamps go off the 1500."""
HEADERS = 42
"""Bytes of Ethernet, IP and UDP before a datagram's payload."""


def round_trips(lab: "NetworkLab", source: int, target: int, count: int = 40, interval: float = 0.01) -> list[float]:
    """Seconds that each of `count` echoes took; lost ones are left out."""
    address = lab.hosts[target].address
    patience = 0.5 + 4 * (_longest(lab, source) + _longest(lab, target))
    with inside(lab, target, probes.echo) as server:
        where = (address, int(server.hear()))
        with inside(lab, source, probes.ping, where, count, interval, patience) as client:
            return [float(each) for each in client.hear(30 + count * interval + patience)]


def rate(lab: "NetworkLab", source: int, target: int, seconds: float = 1.0, start: float = 0.5) -> float:
    """Bit/s of full frames that one TCP flow brings across, `start` seconds after its begin, in its good windows."""
    with inside(lab, target, probes.sink, start, seconds) as server:
        where = (lab.hosts[target].address, int(server.hear()))
        with inside(lab, source, probes.source, where):
            return float(server.hear(30 + start + seconds)) * 8 * FRAME / PAYLOAD


def fate(
    lab: "NetworkLab", source: int, target: int, count: int = 5000, per_second: float = 10_000, checked: bool = True
) -> DatagramFate:
    """Send numbered datagrams and count; `checked=False` sends them without a checksum, so that damage arrives."""
    patience = 0.5 + 2 * (_longest(lab, source) + _longest(lab, target))
    # A byte that both children see: a message over the link could get lost like the datagrams.
    with mmap.mmap(-1, 1) as all_sent, inside(lab, target, probes.count, count, patience, all_sent) as server:
        where = (lab.hosts[target].address, int(server.hear()))
        with inside(lab, source, probes.shower, where, count, per_second, checked) as client:
            client.hear(30 + count / per_second)
            all_sent[0] = 1
            return msgspec.convert(server.hear(30 + patience), DatagramFate)


def _longest(lab: "NetworkLab", host: int) -> float:
    return lab.link(host).delay.seconds + lab.link(host).jitter.seconds
