"""A lab as a TOML file. The schema is closed: an unknown key is refused with the nearest one that exists.

hosts = 4                   # what all hosts have
rate = "100mbit"
delay = "20ms"
[host.2]                    # what one host has instead
loss = 0.005
[[event]]                   # reading them: happening.py
at = "30s"
cut = [2]
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import get_args

import msgspec

from shoal.core.errors import UsageError
from shoal.core.suggest import shown
from shoal.lab.happening import parse_event, write_event
from shoal.lab.link import LabLink, check_link
from shoal.lab.reader import TomlReader, parse_link_values, write_value
from shoal.lab.spec import Compute, HostSpec, LabSpec, alike

LINK_KEYS = LabLink.__struct_fields__
HOST_KEYS = (*LINK_KEYS, "speed")
KEYS = ("hosts", *HOST_KEYS, "seed", "compute", "host", "event")


def parse_table(text: str) -> LabSpec:
    """The lab in the text of a TOML file."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError covers TOMLDecodeError and over-long numbers
        reason = " ".join(str(error).split())
        raise UsageError(f"not valid TOML: {reason}; write lines such as hosts = 4, or '4 hosts, 100mbit'") from None
    reader = TomlReader(table, "the lab", KEYS)
    size = reader.integer("hosts")
    if size is None:
        raise UsageError("the lab does not say how many hosts; write hosts = 4")
    hosts = list(alike(size, _host(reader, HostSpec())))
    for name, entry in reader.table("host").items():
        number = _number(name, size)
        hosts[number] = _host(TomlReader(entry, f"host.{name}", HOST_KEYS), hosts[number])
    events = tuple(parse_event(entry, number) for number, entry in enumerate(reader.tables("event")))
    return LabSpec(tuple(hosts), reader.integer("seed") or 0, _compute(reader), events)


def write_table(spec: LabSpec) -> str:
    """The canonical TOML of a lab: what most hosts have first, then each host that differs, then events."""
    # The shortest file: most hosts then need no table of their own.
    common = Counter(spec.hosts).most_common(1)[0][0]
    lines = [f"hosts = {spec.size}", *_lines(_differences(common, HostSpec()))]
    lines += [f"seed = {spec.seed}"] if spec.seed else []
    lines += [f'compute = "{spec.compute}"'] if spec.compute != "real" else []
    for number, host in enumerate(spec.hosts):
        if host != common:
            lines += ["", f"[host.{number}]", *_lines(_differences(host, common))]
    for event in spec.events:
        lines += ["", "[[event]]", *_lines(write_event(event))]
    return "\n".join(lines) + "\n"


def _host(reader: TomlReader, base: HostSpec) -> HostSpec:
    with reader.place():
        link = check_link(msgspec.structs.replace(base.link, **parse_link_values(reader)))
        speed = reader.number("speed")
        return HostSpec(link, base.speed if speed is None else speed)


def _number(name: str, size: int) -> int:
    if name.isdecimal() and len(name) < 9 and str(int(name)) == name and int(name) < size:
        return int(name)
    raise UsageError(f"[host.{shown(name)[1:-1]}]: no such host; hosts are 0 to {size - 1}")


def _compute(reader: TomlReader) -> Compute:
    compute = reader.text("compute") or "real"
    for known in get_args(Compute):
        if compute == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(f"compute {shown(compute)} is unknown; write 'real' or 'replay'")


def _differences(host: HostSpec, base: HostSpec) -> dict[str, object]:
    values = {
        name: getattr(host.link, name) for name in LINK_KEYS if getattr(host.link, name) != getattr(base.link, name)
    }
    return values if host.speed == base.speed else {**values, "speed": host.speed}


def _lines(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {write_value(value)}" for name, value in values.items()]
