"""Reads and writes one event of a lab's file: `at`, one action, and perhaps `for` and `chance`."""

from collections.abc import Callable

from shoal.core.errors import UsageError
from shoal.core.suggest import shown
from shoal.core.units import EventTime, TimeSpan, parse_share
from shoal.lab.actions import (
    AnyAction,
    ChangeLinks,
    CutLinks,
    DuplicateFrames,
    FlipBits,
    FreezeHosts,
    HealPartitions,
    KillHosts,
    PartitionHosts,
    ReopenLinks,
    RestoreLinks,
    SilenceLinks,
    StallLinks,
    ThawHosts,
)
from shoal.lab.reader import TomlReader, parse_link_values
from shoal.lab.spec import LabEvent

_ON_HOSTS: dict[str, Callable[[tuple[int, ...]], AnyAction]] = {
    "cut": CutLinks,
    "restore": RestoreLinks,
    "kill": KillHosts,
    "freeze": FreezeHosts,
    "thaw": ThawHosts,
}
_WAYS: dict[str, type[SilenceLinks]] = {"cut": SilenceLinks, "restore": ReopenLinks}
_CHANGES = ("rate", "delay", "jitter", "loss", "burst")
_ON_LINKS = ("duplicate", "flip", "stall")
_WAY_KEYS = ("cut_from", "cut_to", "restore_from", "restore_to")
KEYS = ("at", "for", "chance", *_ON_HOSTS, *_WAY_KEYS, "partition", "heal", "host", *_CHANGES, *_ON_LINKS)


def parse_event(table: object, number: int) -> LabEvent:
    """The event in one `[[event]]`."""
    reader = TomlReader(table, f"event {number}", KEYS)
    with reader.place():
        if "at" not in reader:
            raise UsageError('no \'at\'; write at = "30s" or at = "step 200"')
        action = _only(_actions(reader))
        # For a stall `for` is part of the action itself: the switch ends it.
        lasts = TimeSpan.parse(reader["for"]) if "for" in reader and not isinstance(action, StallLinks) else None
        chance = parse_share(reader["chance"]) if "chance" in reader else 1.0
        return LabEvent(EventTime.parse(reader["at"]), action, lasts, chance)


def write_event(event: LabEvent) -> dict[str, object]:
    """The keys of an event, in the order they are written."""
    lasts = {} if event.lasts is None else {"for": str(event.lasts)}
    chance = {} if event.chance == 1 else {"chance": event.chance}
    return {"at": str(event.at), **event.action.keys(), **lasts, **chance}


def _only(actions: list[AnyAction]) -> AnyAction:
    if len(actions) != 1:
        raise UsageError(f"{len(actions)} actions; write one of {', '.join(KEYS[3:])}, and a second event for another")
    return actions[0]


def _actions(reader: TomlReader) -> list[AnyAction]:
    found: list[AnyAction] = [kind(reader.hosts(key)) for key, kind in _ON_HOSTS.items() if key in reader]
    for verb, kind in _WAYS.items():
        if f"{verb}_from" in reader or f"{verb}_to" in reader:
            found.append(_way(reader, verb, kind))
    if "partition" in reader:
        found.append(_partition(reader))
    if "heal" in reader:
        _is_true(reader, "heal")
        found.append(HealPartitions())
    return found + _on_links(reader)


def _way(reader: TomlReader, verb: str, kind: type[SilenceLinks]) -> AnyAction:
    for key in (f"{verb}_from", f"{verb}_to"):
        if key not in reader:
            raise UsageError(f"a way needs both ends; write {verb}_from = [1] and {verb}_to = [2]")
    return kind(reader.hosts(f"{verb}_from"), reader.hosts(f"{verb}_to"))


def _partition(reader: TomlReader) -> PartitionHosts:
    groups = reader["partition"]
    if not isinstance(groups, list):
        raise UsageError(f"partition = {shown(groups)} is no list of groups; write [[0, 1], [2, 3]]")
    return PartitionHosts(tuple(reader.numbers(group, "partition") for group in groups))


def _on_links(reader: TomlReader) -> list[AnyAction]:
    wanted = [key for key in (*_CHANGES, *_ON_LINKS) if key in reader]
    if not wanted:
        return []
    if "host" not in reader:
        raise UsageError(f"{wanted[0]!r} is of a link; say whose, as in host = 1")
    hosts, found = reader.hosts("host"), list[AnyAction]()
    values = parse_link_values(reader)
    if values:
        found.append(ChangeLinks(hosts, **values))  # type: ignore[arg-type]
    if "duplicate" in reader:
        found.append(DuplicateFrames(hosts, parse_share(reader["duplicate"])))
    if "flip" in reader:
        found.append(FlipBits(hosts, parse_share(reader["flip"])))
    if "stall" in reader:
        _is_true(reader, "stall")
        found.append(StallLinks(hosts, _needed_time(reader)))
    return found


def _needed_time(reader: TomlReader) -> TimeSpan:
    if "for" not in reader:
        raise UsageError('a stall needs its length; write for = "500ms"')
    return TimeSpan.parse(reader["for"])


def _is_true(reader: TomlReader, key: str) -> None:
    if reader[key] is not True:
        raise UsageError(f"{key} = {shown(reader[key])} says nothing; write {key} = true, or leave it out")
