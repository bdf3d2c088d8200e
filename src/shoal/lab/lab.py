"""A running lab: hosts, the switch between them, and what runs in them.

    with Lab(Spec.parse("4 hosts, 100mbit, 20ms")) as lab:
        worker = lab.popen(0, ["python", "train.py"])       # or lab.enter(0) in a forked child
        lab.cut(2)
        lab.restore(2)
    # here every process, device and namespace of the lab is gone

It starts no thread, so the process that holds it may fork at any time. Children that never enter a host should call
`abandon`; they may keep using nothing of the lab.
"""

import itertools
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from shoal.core.errors import ShoalError, UsageError
from shoal.core.units import TimeSpan
from shoal.lab.host import INTERFACE, NAMESPACES, LabHost, address_of
from shoal.lab.link import LabLink
from shoal.lab.namespace import add, configure, hold_back
from shoal.lab.needs import require
from shoal.lab.reaper import LabReaper
from shoal.lab.spec import HostSpec, LabSpec
from shoal.lab.speed import CpuQuota, limit, place, usual_cores
from shoal.lab.switch import LabSwitch, LinkStat, program

_serial = itertools.count()


class NetworkLab:
    """The hosts of `spec`, from `with` to its end. `cores`: processors of a host of speed 1, for quotas.

    `coordinator`: one more host, after the others, with a link without limits, for the process that trains nothing.
    """

    def __init__(self, spec: LabSpec, cores: float | None = None, coordinator: bool = False) -> None:
        self.spec, self._all = spec, (*spec.hosts, *[HostSpec()] * coordinator)
        self.hosts: list[LabHost] = []
        self._cores = usual_cores(spec.size) if cores is None else cores
        self._owner = os.getpid()
        self._switch: LabSwitch | None = None
        self._reaper: LabReaper | None = None
        self._links: list[LabLink] = []
        self._bursts: dict[int, int] = {}
        self._noise = [(0.0, 0.0)] * len(self._all)
        self._hears = _everyone(len(self._all))
        self._quotas: dict[int, CpuQuota | None] = {}
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        require()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Links

    def set_link(self, host: int, link: LabLink) -> None:
        """Give a host's link new values, in both directions, from now on."""
        self._ready.set_link(self._rank(host), link)
        self._links[host] = link
        self._bursts[host] = hold_back(self.hosts[host], link, self._bursts.get(host, 0))

    def link(self, host: int) -> LabLink:
        """Return a host's link as it is now."""
        return self._links[self._rank(host)]

    def cut(self, *hosts: int) -> None:
        """Lose everything on their links, including frames under way; devices stay up, so hosts only see silence."""
        self._ready.ask(*(f"cut {self._rank(host)}" for host in hosts))

    def restore(self, *hosts: int) -> None:
        """End `cut`; links have their rate, delay and loss as before."""
        self._ready.ask(*(f"restore {self._rank(host)}" for host in hosts))

    def silence(self, sources: Iterable[int], targets: Iterable[int], heard: bool = False) -> None:
        """Cut the way from some hosts to others, one way; `heard=True` opens it again."""
        targets = list(targets)
        for source, target in itertools.product(sources, targets):
            self._hears[self._rank(source)][self._rank(target)] = heard
        self._ready.allow(self._hears)

    def partition(self, *groups: Sequence[int]) -> None:
        """Let hosts hear only their own group; hosts that are not named form one more.

        The coordinator's host, if it is not named, is in the group of host 0.
        """
        group_of = {self._rank(host): number for number, group in enumerate(groups) for host in group}
        for extra in range(self.spec.size, len(self.hosts)):
            # Where worker 0 is, training goes on, so the coordinator goes with it.
            if extra not in group_of and 0 in group_of:
                group_of[extra] = group_of[0]
        ranks = range(len(self.hosts))
        self._hears = [[group_of.get(a) == group_of.get(b) for b in ranks] for a in ranks]
        self._ready.allow(self._hears)

    def heal(self) -> None:
        """End every partition and one-way cut; links that are cut stay cut."""
        self._hears = _everyone(len(self.hosts))
        self._ready.allow(self._hears)

    def noise(self, host: int, duplicate: float | None = None, flip: float | None = None) -> None:
        """Shares of frames of a link that arrive twice, or with one payload bit flipped; None stays as it is."""
        before = self._noise[self._rank(host)]
        after = before[0] if duplicate is None else duplicate, before[1] if flip is None else flip
        self._ready.noise(host, *after)
        self._noise[host] = after

    def stall(self, host: int, time: TimeSpan) -> None:
        """Hold every frame of a link for so long, then deliver all."""
        self._ready.ask(f"stall {self._rank(host)} {time.nanoseconds}")

    def stat(self, host: int) -> LinkStat:
        """Return the counters of a host's link."""
        return self._ready.stat(self._rank(host))

    # Processes

    def enter(self, host: int) -> None:
        """Move the calling process, a forked child, into a host, for good, and set `environment(host)`.

        Call it before the child starts a thread. The lab is closed for it; the parent's lab stays open.
        """
        target, quota = self.hosts[self._rank(host)], self.quota(host)
        # setns cannot be undone here, and the lab must be closed from outside of its hosts.
        if os.getpid() == self._owner:
            raise ShoalError("the lab's own process cannot enter a host; fork first")
        self.abandon()
        target.enter()
        if quota:
            quota.take(os.getpid())
        os.environ.update(self.environment(host))

    def popen(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in a host; `options` go to `subprocess.Popen`."""
        target, quota = self.hosts[self._rank(host)], self.quota(host)

        def enter() -> None:
            target.enter()
            if quota:
                quota.take(os.getpid())

        everything = {**os.environ, **self.environment(host), **(env or {})}
        process = subprocess.Popen(argv, env=everything, preexec_fn=enter, **options)
        self._processes.append(process)
        return process

    def environment(self, host: int) -> dict[str, str]:
        """The environment of a program in a host: its rank, the number of hosts, its address and the first host's."""
        return {
            "SHOAL_LAB_HOST": str(self._rank(host)),
            "SHOAL_LAB_HOSTS": str(len(self.hosts)),
            "SHOAL_LAB_ADDRESS": self.hosts[host].address,
            "MASTER_ADDR": self.hosts[0].address,
            # gloo would look up the host's own name, which nothing in a lab resolves.
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }

    def signal(self, host: int, number: signal.Signals) -> None:
        """Send a signal to everything that runs in a host."""
        self.hosts[self._rank(host)].signal(number)

    def quota(self, host: int) -> CpuQuota | None:
        """The limit on a host's processor time; None: it has full speed, or the caller must sleep (`speed.rest`)."""
        return self._quotas.get(self._rank(host))

    def abandon(self) -> None:
        """In a forked child: let go of the lab without ending it."""
        for part in (self._switch, self._reaper):
            if part:
                part.abandon()
        self._switch, self._reaper = None, None
        self._processes.clear()

    def close(self) -> None:
        """Kill what runs in the hosts and remove all that the lab made; in a forked child, only let go of it."""
        if os.getpid() != self._owner:
            self.abandon()
            return
        reaper, self._reaper = self._reaper, None
        switch, self._switch = self._switch, None
        if switch:
            switch.close()  # first, so that nothing waits for an answer any more
        if reaper:
            reaper.close()
        for process in self._processes:
            process.wait(10.0)  # it has been killed
        self._processes.clear()

    # Making it

    def _open(self) -> None:
        path = program()
        # First: whatever is made below is registered with it before it exists.
        self._reaper = LabReaper(path, self._owner)
        name = _new_name(self._owner)
        for rank in range(len(self._all)):
            host = LabHost(rank, f"{name}-{rank}", address_of(rank))
            self._reaper.namespace(host.name)
            add(host)
            self.hosts.append(host)
        self._switch = LabSwitch(path, self._owner, self.spec.seed, [host.name for host in self.hosts])
        self._links = [LabLink()] * len(self._all)
        for host, wanted in zip(self.hosts, self._all, strict=True):
            configure(host, self.hosts)
            self.set_link(host.rank, wanted.link)
            self._slow_down(self._reaper, host, wanted.speed)

    def _slow_down(self, reaper: LabReaper, host: LabHost, speed: float) -> None:
        found = place(host.name) if speed < 1 else None
        if found:
            reaper.folder(found[0])
            self._quotas[host.rank] = limit(*found, speed, self._cores)

    def _rank(self, host: int) -> int:
        if not 0 <= host < len(self.hosts):
            raise UsageError(f"no host {host} in this lab; hosts are 0 to {len(self.hosts) - 1}")
        return host

    @property
    def _ready(self) -> LabSwitch:
        if self._switch is None:
            raise ShoalError("the lab is not open; use it inside 'with Lab(spec) as lab'")
        return self._switch


def _new_name(owner: int) -> str:
    """Not that of a lab whose process had the same number once and whose reaper was killed, too."""
    names = (f"shoal-{owner}-{number}" for number in _serial)
    return next(name for name in names if not any(NAMESPACES.glob(f"{name}-*")))


def _everyone(size: int) -> list[list[bool]]:
    return [[True] * size for _ in range(size)]
