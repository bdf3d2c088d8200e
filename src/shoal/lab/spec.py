"""The specification of a lab as plain data: hosts with their links and speeds, a seed, and events.

    "4 hosts, 100mbit, 20ms"        load.py, when all hosts are alike and nothing happens
    lab.toml                        table.py, for everything else

`parse_lab(write_lab(spec)) == spec` (load.py) always holds, so a record can keep a lab as one text.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from shoal.core.errors import UsageError
from shoal.core.units import EventTime, TimeSpan
from shoal.lab.actions import AnyAction, ChangeLinks
from shoal.lab.link import LabLink, check_link

# The address 10.77.0.N has one byte for the host, and the coordinator needs one more.
MOST_HOSTS = 250
MOST_EVENTS = 10_000
MOST_SEED = 2**63 - 1

Compute = Literal["real", "replay"]


class HostSpec(msgspec.Struct, frozen=True):
    """One host."""

    link: LabLink = LabLink()
    speed: float = 1.0
    """Its computing speed as a fraction of the machine's: at 0.25 everything takes four times as long."""

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise UsageError(f"speed {self.speed} is out of range; write a share above 0 and up to 1")


class LabEvent(msgspec.Struct, frozen=True):
    """Something that happens once."""

    at: EventTime
    action: AnyAction
    lasts: TimeSpan | None = None
    """After this it is undone; None is never."""
    chance: float = 1.0
    """The probability that it happens at all, decided by the lab's seed."""

    def __post_init__(self) -> None:
        if self.lasts is not None and not self.action.lasting:
            raise UsageError(f"'{self.action}' cannot be undone by itself; leave 'for' out")
        if not 0 <= self.chance <= 1:
            raise UsageError(f"chance {self.chance} is out of range; write a number from 0 to 1")

    def __str__(self) -> str:
        lasts = f" for {self.lasts}" if self.lasts is not None else ""
        chance = f" (chance {self.chance})" if self.chance < 1 else ""
        return f"at {self.at}: {self.action}{lasts}{chance}"


class LabSpec(msgspec.Struct, frozen=True):
    """A whole lab."""

    hosts: tuple[HostSpec, ...]
    seed: int = 0
    compute: Compute = "real"
    """`replay`: workers take the recorded time of a step instead of computing it again."""
    events: tuple[LabEvent, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MOST_HOSTS:
            raise UsageError(f"{len(self.hosts)} hosts are out of range; write 1 to {MOST_HOSTS}")
        if not 0 <= self.seed <= MOST_SEED:
            raise UsageError(f"seed {self.seed} is out of range; write one from 0 to 2^63-1")
        if len(self.events) > MOST_EVENTS:
            raise UsageError(f"{len(self.events)} events; at most {MOST_EVENTS} are read")
        for host in self.hosts:
            check_link(host.link)
        for event in self.events:
            self._check(event)

    def _check(self, event: LabEvent) -> None:
        for host in event.action.named():
            if not 0 <= host <= len(self.hosts):  # the last is the coordinator's
                raise UsageError(
                    f"event '{event}': no host {host}; hosts are 0 to {len(self.hosts) - 1}, and {len(self.hosts)} is "
                    "the coordinator's"
                )
        if isinstance(event.action, ChangeLinks):
            for host in event.action.hosts:
                check_link(event.action.to((*self.hosts, HostSpec())[host].link))

    @property
    def size(self) -> int:
        return len(self.hosts)


def alike(size: int, host: HostSpec) -> Iterable[HostSpec]:
    """`size` equal hosts; refuses a size that is out of range before making them."""
    if not 1 <= size <= MOST_HOSTS:
        raise UsageError(f"{size} hosts are out of range; write 1 to {MOST_HOSTS}")
    return [host] * size
