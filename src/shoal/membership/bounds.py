"""Which of a member's numbers the coordinator believes: only those that its own log allows.

A remote worker holds a key, and nothing else is known of it. Its numbers decide nothing for others: only those of
the run's own workers do. A number that no honest member can send evicts its sender.
"""

import ipaddress
import math
from collections.abc import Callable, Collection, Mapping

from zmq.utils import z85

from shoal.membership.protocol import Heartbeat, MemberInfo, ProposeAck, Report

FORGOTTEN_VIEWS = 1024
"""How far the run's own workers may be ahead of the log, whose end a damaged disk may have lost."""
# Seconds; a claim of more would excuse any silence (`MembershipRules.longest`).
LONGEST_STEP = 600.0


def false_number(report: Report, newest: int, remote: bool) -> str:
    """Return why a report cannot be true, or "". `newest`: the highest generation in the log."""
    if isinstance(report, Heartbeat):
        if not (math.isfinite(report.period) and math.isfinite(report.idle)):
            return f"its steps take {report.period} s and it idles for {report.idle} s; both are finite"
        if report.generation > report.promised:
            return f"it says it is in view {report.generation} and was asked to enter {report.promised} at the most"
        claimed = report.promised
    elif isinstance(report, ProposeAck):
        claimed = max(report.generation, report.formed, report.committed_generation)
    else:
        return ""
    # A remote worker that is ahead of the log lies; one of the run's own may know views the log has lost.
    if claimed > newest + (0 if remote else FORGOTTEN_VIEWS):
        return f"it says there is a view {claimed}; the newest is {newest}"
    return ""


def forged(standings: Collection[ProposeAck], is_remote: Callable[[str], bool]) -> dict[str, str]:
    """Return the remote members whose `applied` contradicts the run's own workers, and why.

    No member completes an operation before all hold its result. So all are equally far, or one operation apart, and a
    member that is behind then holds the result of the next operation.
    """
    own = [standing for standing in standings if not is_remote(standing.member)]
    if not own:
        return {}
    least, most = min(s.applied for s in own), max(s.applied for s in own)
    held = all(s.formed for s in own if s.applied == least)
    found = {}
    for standing in standings:
        number = standing.applied
        alone = number == least + 1 and number > most and not held
        if is_remote(standing.member) and (alone or not most - 1 <= number <= least + 1):
            found[standing.member] = f"it says it completed operation {number}; the run's own workers are at {least}"
    return found


def step_seconds(beats: Collection[Heartbeat]) -> float:
    """Return the longest median step of these members; 0 while none is known."""
    return min(LONGEST_STEP, max((beat.period for beat in beats), default=0.0))


def info_objection(member: str, info: MemberInfo, others: Mapping[str, MemberInfo], owner: Callable[[str], str]) -> str:
    """Return why a member's address or key is invalid, or is that of another member; "" if it is fine."""
    if info.address and not _is_address(info.address):
        return f"{info.address!r} cannot be connected; an address is tcp:// with an IPv4 address and a port"
    if info.public and not _is_key(info.public):
        return f"{info.public!r} is no public key; make one with shoal keys new"
    if not info.remote:
        return ""
    if not (info.address and info.public):
        return "a remote worker has an address and a public key"
    for other, its in others.items():
        if other == member:
            continue
        if its.public == info.public or its.address == info.address:
            return f"the address {info.address} or its key is that of {other}"
        if info.host_group and its.host_group == info.host_group and owner(other) != owner(member):
            return f"the memory {info.host_group!r} is that of {other}, which came with another key"
    return ""


def _is_address(address: str) -> bool:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        place = ipaddress.IPv4Address(host)
    except ValueError:
        return False
    # Loopback and private addresses stay allowed: labs and laptops use them.
    usual = not (place.is_unspecified or place.is_multicast or place.is_reserved)
    return usual and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16


def _is_key(public: str) -> bool:
    try:
        return len(z85.decode(public)) == 32
    except Exception:  # noqa: BLE001  (whatever error the decoder raises, this is no key)
        return False
