"""A lab as a picture: the hosts around their switch, a table of links, and what happens when.

switch
├── ══ 100mbit · 20ms ══ host 0
└── ── 10mbit · 80ms · loses 0.5% ── host 1
"""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from shoal.core.units import write_share
from shoal.lab.host import address_of
from shoal.watch.table import add_figures, plain_table

if TYPE_CHECKING:
    from shoal.lab.link import LabLink
    from shoal.lab.spec import HostSpec, LabEvent, LabSpec

MOST_DRAWN = 32
"""Hosts in the picture; the table has them all."""


def draw(spec: "LabSpec") -> RenderableType:
    """The whole lab."""
    parts: list[RenderableType] = [_star(spec), Text(), _hosts(spec)]
    if spec.events:
        parts += [Text(), _events(spec.events)]
    return Group(*parts, Text(), Text(_footing(spec), style="dim"))


def _star(spec: "LabSpec") -> Tree:
    fastest = max(host.link.rate.bits for host in spec.hosts)
    tree = Tree("switch", guide_style="dim")
    for rank, host in enumerate(spec.hosts[:MOST_DRAWN]):
        line = "══" if host.link.rate.bits in (0, fastest) else "──"
        slow = f", speed {host.speed:g}" if host.speed < 1 else ""
        tree.add(Text(f"{line} {_words(host.link)} {line} host {rank}{slow}"))
    if spec.size > MOST_DRAWN:
        tree.add(Text(f"and {spec.size - MOST_DRAWN} more"))
    return tree


def _words(link: "LabLink") -> str:
    parts = [str(link.rate), str(link.delay) + (f" ± {link.jitter}" if link.jitter.nanoseconds else "")]
    if link.loss:
        parts.append(f"loses {write_share(link.loss)}" + (f" in bursts of {link.burst:g}" if link.burst > 1 else ""))
    return " · ".join(parts)


def _hosts(spec: "LabSpec") -> Table:
    table = plain_table("host")
    table.add_column("address", no_wrap=True)
    add_figures(table, "rate", "delay", "jitter", "loss", "burst", "speed")
    for rank, host in enumerate(spec.hosts):
        table.add_row(str(rank), address_of(rank), *_figures(host))
    return table


def _figures(host: "HostSpec") -> list[str]:
    link = host.link
    values = [str(link.rate), str(link.delay), str(link.jitter), write_share(link.loss)]
    return [*values, f"{link.burst:g}", f"{host.speed:g}"]


def _events(events: "tuple[LabEvent, ...]") -> Table:
    """In the order of time; those that wait for a step come after."""
    table = plain_table("at")
    for name in ("what", "for", "chance"):
        table.add_column(name)
    for event in sorted(
        events, key=lambda e: (e.at.after is None, e.at.after.nanoseconds if e.at.after else e.at.step)
    ):
        lasts, chance = str(event.lasts or ""), "" if event.chance == 1 else f"{event.chance:g}"
        table.add_row(str(event.at), Text(str(event.action)), lasts, chance)
    return table


def _footing(spec: "LabSpec") -> str:
    mean = f"compute {spec.compute}, seed {spec.seed}"
    if spec.size < 2:
        return mean
    a, b = spec.hosts[0].link, spec.hosts[1].link
    trip = (a.delay.seconds + b.delay.seconds) * 2e3
    return f"{mean}; a frame passes two links, so a round trip of hosts 0 and 1 takes {trip:g} ms"
