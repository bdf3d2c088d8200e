"""Worlds whose workers are on several hosts, and whose members change when the test says so."""

from collections.abc import Sequence

from changing import Told, changing

from shoal.groups.host_workers import HostGroup, HostWorkers, leaders
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.hosts.arena import ArenaRegions
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.testing.world import WorkerWorld


def changing_hosts(world: WorkerWorld, host_groups: Sequence[str], slot: int) -> tuple[LinkedGroup, Told]:
    """Over links, with the memory that the workers of a host share; here all share one, each host has its own part."""
    group, session = changing(world, links=True)
    assert isinstance(group, LinkedGroup)
    assert isinstance(world.group, SharedGroup)
    slots = tuple(other for other, name in enumerate(host_groups) if name == host_groups[slot])
    host_group = HostGroup(world.group.arena, HostWorkers(slots, host_groups[slot]), slot, group.board, 60.0, session)
    start = (1 << 24) * (1 + sorted(set(host_groups)).index(host_groups[slot]))
    host_group.region = ArenaRegions(world.group.arena, start).take

    class Follow(MembershipListener):
        def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
            names = [host_groups[slot_of(member)] for member in view.members]
            host_group.enter(view, names)
            group.leaders = leaders(view, names)
            group._hosts = dict(zip(view.members, names, strict=True))

    session.listeners.add(Follow(), ListenerStage.group)
    Follow().on_view_change(session.view, ())
    group.local = host_group
    return group, session
