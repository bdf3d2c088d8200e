"""Lets an event's action happen in a running lab."""

import signal
from typing import TYPE_CHECKING

from shoal.cluster.lab.actions import (
    AnyAction,
    Change,
    Cut,
    Duplicate,
    Flip,
    Freeze,
    Heal,
    Kill,
    OnHosts,
    Partition,
    Reopen,
    Restore,
    Silence,
    Stall,
    Thaw,
)

if TYPE_CHECKING:
    from shoal.cluster.lab.lab import Lab

SIGNALS = {Kill: signal.SIGKILL, Freeze: signal.SIGSTOP, Thaw: signal.SIGCONT}


def apply(lab: "Lab", action: AnyAction) -> None:
    """Do it, to all the hosts it names."""
    match action:
        case Cut(hosts):
            lab.cut(*hosts)
        case Restore(hosts):
            lab.restore(*hosts)
        case Silence(sources, targets):
            lab.silence(sources, targets, heard=isinstance(action, Reopen))
        case Partition(groups):
            lab.partition(*groups)
        case Heal():
            lab.heal()
        case OnHosts(hosts):
            for host in hosts:
                _on_host(lab, host, action)


def _on_host(lab: "Lab", host: int, action: OnHosts) -> None:
    match action:
        case Change():
            lab.set_link(host, action.to(lab.link(host)))
        case Duplicate():
            lab.noise(host, duplicate=action.share)
        case Flip():
            lab.noise(host, flip=action.share)
        case Stall():
            lab.stall(host, action.time)
        case Kill() | Freeze() | Thaw():
            lab.signal(host, SIGNALS[type(action)])
