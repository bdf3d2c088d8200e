"""Reads and writes one event of a lab's file: `at`, one action, and perhaps `for` and `chance`."""

from collections.abc import Callable

from shoal.cluster.lab.actions import (
    AnyAction,
    Change,
    Cut,
    Duplicate,
    Flip,
    Freeze,
    Heal,
    Kill,
    Partition,
    Reopen,
    Restore,
    Silence,
    Stall,
    Thaw,
)
from shoal.cluster.lab.reader import Reader, parse_link_values
from shoal.cluster.lab.spec import Event
from shoal.cluster.lab.units import Delay, Moment, parse_share
from shoal.core.errors import UsageError
from shoal.core.suggest import shown

_ON_HOSTS: dict[str, Callable[[tuple[int, ...]], AnyAction]] = {
    "cut": Cut,
    "restore": Restore,
    "kill": Kill,
    "freeze": Freeze,
    "thaw": Thaw,
}
_WAYS: dict[str, type[Silence]] = {"cut": Silence, "restore": Reopen}
_CHANGES = ("rate", "delay", "jitter", "loss", "burst")
_ON_LINKS = ("duplicate", "flip", "stall")
_WAY_KEYS = ("cut_from", "cut_to", "restore_from", "restore_to")
KEYS = ("at", "for", "chance", *_ON_HOSTS, *_WAY_KEYS, "partition", "heal", "host", *_CHANGES, *_ON_LINKS)


def parse_event(table: object, number: int) -> Event:
    """The event in one `[[event]]`."""
    reader = Reader(table, f"event {number}", KEYS)
    with reader.place():
        if "at" not in reader:
            raise UsageError('no \'at\'; write at = "30s" or at = "step 200"')
        action = _only(_actions(reader))
        lasts = Delay.parse(reader["for"]) if "for" in reader and not isinstance(action, Stall) else None
        chance = parse_share(reader["chance"]) if "chance" in reader else 1.0
        return Event(Moment.parse(reader["at"]), action, lasts, chance)


def write_event(event: Event) -> dict[str, object]:
    """The keys of an event, in the order they are written."""
    lasts = {} if event.lasts is None else {"for": str(event.lasts)}
    chance = {} if event.chance == 1 else {"chance": event.chance}
    return {"at": str(event.at), **event.action.keys(), **lasts, **chance}


def _only(actions: list[AnyAction]) -> AnyAction:
    if len(actions) != 1:
        raise UsageError(f"{len(actions)} actions; write one of {', '.join(KEYS[3:])}, and a second event for another")
    return actions[0]


def _actions(reader: Reader) -> list[AnyAction]:
    found: list[AnyAction] = [kind(reader.hosts(key)) for key, kind in _ON_HOSTS.items() if key in reader]
    for verb, kind in _WAYS.items():
        if f"{verb}_from" in reader or f"{verb}_to" in reader:
            found.append(_way(reader, verb, kind))
    if "partition" in reader:
        found.append(_partition(reader))
    if "heal" in reader:
        _is_true(reader, "heal")
        found.append(Heal())
    return found + _on_links(reader)


def _way(reader: Reader, verb: str, kind: type[Silence]) -> AnyAction:
    for key in (f"{verb}_from", f"{verb}_to"):
        if key not in reader:
            raise UsageError(f"a way needs both ends; write {verb}_from = [1] and {verb}_to = [2]")
    return kind(reader.hosts(f"{verb}_from"), reader.hosts(f"{verb}_to"))


def _partition(reader: Reader) -> Partition:
    groups = reader["partition"]
    if not isinstance(groups, list):
        raise UsageError(f"partition = {shown(groups)} is no list of groups; write [[0, 1], [2, 3]]")
    return Partition(tuple(reader.numbers(group, "partition") for group in groups))


def _on_links(reader: Reader) -> list[AnyAction]:
    wanted = [key for key in (*_CHANGES, *_ON_LINKS) if key in reader]
    if not wanted:
        return []
    if "host" not in reader:
        raise UsageError(f"{wanted[0]!r} is of a link; say whose, as in host = 1")
    hosts, found = reader.hosts("host"), list[AnyAction]()
    values = parse_link_values(reader)
    if values:
        found.append(Change(hosts, **values))  # type: ignore[arg-type]
    if "duplicate" in reader:
        found.append(Duplicate(hosts, parse_share(reader["duplicate"])))
    if "flip" in reader:
        found.append(Flip(hosts, parse_share(reader["flip"])))
    if "stall" in reader:
        _is_true(reader, "stall")
        found.append(Stall(hosts, _needed_time(reader)))
    return found


def _needed_time(reader: Reader) -> Delay:
    if "for" not in reader:
        raise UsageError('a stall needs its length; write for = "500ms"')
    return Delay.parse(reader["for"])


def _is_true(reader: Reader, key: str) -> None:
    if reader[key] is not True:
        raise UsageError(f"{key} = {shown(reader[key])} says nothing; write {key} = true, or leave it out")
