"""Makes the hosts: a network namespace each, its address, its neighbours, and the queue before its device."""

import subprocess
from collections.abc import Iterable

from shoal.core.errors import ShoalError
from shoal.lab.host import FRAME, INTERFACE, MTU, NAMESPACES, LabHost
from shoal.lab.link import LabLink
from shoal.lab.switch import QUEUE


def add(host: LabHost) -> None:
    """Make the namespace; a reaper should know of it before."""
    if (NAMESPACES / host.name).exists():
        raise ShoalError(f"a namespace {host.name} exists already; remove it with 'ip netns delete {host.name}'")
    _call("ip", "netns", "add", host.name)


def configure(host: LabHost, hosts: Iterable[LabHost]) -> None:
    """Its address, and everyone's hardware address beforehand, so that a cut is pure silence and not, after a while,
    a failure to resolve. There is no default route: nothing leaves the lab."""
    lines = [
        "link set lo up",
        # addrgenmode none: IPv6 would send frames of its own and disturb the count.
        f"link set {INTERFACE} address {host.mac} mtu {MTU} txqueuelen 10000 addrgenmode none",
        f"link set {INTERFACE} up",
        f"addr add {host.address}/16 dev {INTERFACE}",
    ]
    others = (other for other in hosts if other.rank != host.rank)
    lines += [f"neigh replace {o.address} lladdr {o.mac} dev {INTERFACE} nud permanent" for o in others]
    _call("ip", "-n", host.name, "-batch", "-", stdin="\n".join(lines))


LARGEST_PACKET = 72_000
"""Bytes of what TCP hands down in one piece (64 KiB at the most), to be cut into frames later, with their heads."""


def hold_back(host: LabHost, link: LabLink, before: int = 0) -> int:
    """The switch keeps the rate exactly. This only makes senders wait for their link, as TCP does for a real device,
    instead of overrunning it; its bursts, 4 ms long, are spread out by the switch.

    Returns the burst's bytes; `before` is what it was till now. What waits already may be as large as that, and of a
    smaller one nothing would ever leave again.
    """
    # 1/250 s of the rate: 4 ms.
    burst = max(2 * FRAME, link.rate.bits // 8 // 250, min(before, LARGEST_PACKET))
    tbf = f"tbf rate {link.rate.bits}bit burst {burst} limit {max(QUEUE, burst)}"
    qdisc = (tbf if link.rate.bits else "pfifo limit 10000").split()
    _call("tc", "-n", host.name, "qdisc", "replace", "dev", INTERFACE, "root", *qdisc)
    return burst if link.rate.bits else 0


def _call(*argv: str, stdin: str | None = None) -> None:
    done = subprocess.run(argv, input=stdin, text=True, capture_output=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ShoalError(f"the lab could not run '{' '.join(argv)}': {reason}; see 'shoal lab check'")
