"""Lets an event's action happen in a running lab."""

import signal

from shoal.lab.actions import (
    AnyAction,
    ChangeLinks,
    CutLinks,
    DuplicateFrames,
    FlipBits,
    FreezeHosts,
    HealPartitions,
    HostAction,
    KillHosts,
    PartitionHosts,
    ReopenLinks,
    RestoreLinks,
    SilenceLinks,
    StallLinks,
    ThawHosts,
)
from shoal.lab.lab import NetworkLab

SIGNALS = {KillHosts: signal.SIGKILL, FreezeHosts: signal.SIGSTOP, ThawHosts: signal.SIGCONT}


def apply(lab: NetworkLab, action: AnyAction) -> None:
    """Do it, to all the hosts it names."""
    match action:
        case CutLinks(hosts):
            lab.cut(*hosts)
        case RestoreLinks(hosts):
            lab.restore(*hosts)
        case SilenceLinks(sources, targets):
            # `ReopenLinks` is a `SilenceLinks`, so one case takes both.
            lab.silence(sources, targets, heard=isinstance(action, ReopenLinks))
        case PartitionHosts(groups):
            lab.partition(*groups)
        case HealPartitions():
            lab.heal()
        case HostAction(hosts):
            for host in hosts:
                _on_host(lab, host, action)


def _on_host(lab: NetworkLab, host: int, action: HostAction) -> None:
    match action:
        case ChangeLinks():
            lab.set_link(host, action.to(lab.link(host)))
        case DuplicateFrames():
            lab.noise(host, duplicate=action.share)
        case FlipBits():
            lab.noise(host, flip=action.share)
        case StallLinks():
            lab.stall(host, action.time)
        case KillHosts() | FreezeHosts() | ThawHosts():
            lab.signal(host, SIGNALS[type(action)])
