"""The events of hosts and links while a lab runs: one small record per kind.

`keys()` of an action is how it stands in a TOML file, `str()` how it reads.
"""

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from shoal.core.errors import UsageError
from shoal.core.units import BitRate, TimeSpan, parse_share, write_share
from shoal.lab.link import LabLink

Keys = dict[str, object]


# msgspec wants a tag for each class of a union; the class name is only the default.
class LabAction(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower):
    """Base of all actions."""

    lasting: ClassVar[bool] = False
    """Whether it can be undone automatically after a while."""

    def named(self) -> Iterable[int]:
        """The hosts it speaks of."""
        return ()

    def keys(self) -> Keys:
        raise NotImplementedError


class HostAction(LabAction, frozen=True):
    """Base of what is done to some hosts."""

    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        _distinct(self.hosts)

    def named(self) -> Iterable[int]:
        return self.hosts

    def keys(self) -> Keys:
        return {str(self.__struct_config__.tag): list(self.hosts)}

    def __str__(self) -> str:
        return f"{self.__struct_config__.tag!s} {_some(self.hosts)}"


class CutLinks(HostAction, frozen=True, tag="cut"):
    """Their links lose everything, including frames under way."""

    lasting: ClassVar[bool] = True


class RestoreLinks(HostAction, frozen=True, tag="restore"):
    """Ends `cut`."""


class KillHosts(HostAction, frozen=True, tag="kill"):
    """SIGKILL to everything that runs there."""


class FreezeHosts(HostAction, frozen=True, tag="freeze"):
    """SIGSTOP: the host is silent, but its kernel still answers for its connections."""

    lasting: ClassVar[bool] = True


class ThawHosts(HostAction, frozen=True, tag="thaw"):
    """Ends `freeze`."""


class StallLinks(HostAction, frozen=True, tag="stall"):
    """Their links hold every frame for so long, then deliver all of them."""

    time: TimeSpan

    def keys(self) -> Keys:
        return {"host": list(self.hosts), "stall": True, "for": str(self.time)}

    def __str__(self) -> str:
        return f"stall {_some(self.hosts)} for {self.time}"


class ChangeLinks(HostAction, frozen=True, tag="change"):
    """New values for their links; None leaves a value unchanged."""

    lasting: ClassVar[bool] = True
    rate: BitRate | None = None
    delay: TimeSpan | None = None
    jitter: TimeSpan | None = None
    loss: float | None = None
    burst: float | None = None

    def values(self) -> dict[str, BitRate | TimeSpan | float]:
        found = {name: getattr(self, name) for name in LabLink.__struct_fields__}
        return {name: value for name, value in found.items() if value is not None}

    def to(self, link: LabLink) -> LabLink:
        """`link` with the new values."""
        return msgspec.structs.replace(link, **self.values())

    def keys(self) -> Keys:
        values = {name: v if isinstance(v, float) else str(v) for name, v in self.values().items()}
        return {"host": list(self.hosts), **values}

    def __str__(self) -> str:
        return f"{_some(self.hosts)}: " + ", ".join(f"{name} {value}" for name, value in self.values().items())


class LinkNoise(HostAction, frozen=True):
    """Base of what happens to a share of the frames of their links."""

    lasting: ClassVar[bool] = True
    share: float

    def __post_init__(self) -> None:
        _distinct(self.hosts)
        parse_share(self.share)

    def keys(self) -> Keys:
        return {"host": list(self.hosts), str(self.__struct_config__.tag): self.share}

    def __str__(self) -> str:
        return f"{self.__struct_config__.tag!s} {write_share(self.share)} of frames of {_some(self.hosts)}"


class DuplicateFrames(LinkNoise, frozen=True, tag="duplicate"):
    """Frames arrive twice."""


class FlipBits(LinkNoise, frozen=True, tag="flip"):
    """One bit of a frame's payload is flipped, and no checksum is mended: TCP drops such a frame."""


class SilenceLinks(LabAction, frozen=True, tag="silence"):
    """Frames from some hosts no longer reach some others; the way back stays open."""

    lasting: ClassVar[bool] = True
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    verb: ClassVar[str] = "cut"

    def __post_init__(self) -> None:
        _distinct(self.sources)
        _distinct(self.targets)

    def named(self) -> Iterable[int]:
        return (*self.sources, *self.targets)

    def keys(self) -> Keys:
        return {f"{self.verb}_from": list(self.sources), f"{self.verb}_to": list(self.targets)}

    def __str__(self) -> str:
        return f"{self.verb} the way from {_some(self.sources)} to {_some(self.targets)}"


class ReopenLinks(SilenceLinks, frozen=True, tag="reopen"):
    """Ends `SilenceLinks`."""

    lasting: ClassVar[bool] = False
    verb: ClassVar[str] = "restore"


class PartitionHosts(LabAction, frozen=True, tag="partition"):
    """Hosts hear only their own group; hosts that are not named form one more group."""

    lasting: ClassVar[bool] = True
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise UsageError("a partition needs a group; write partition = [[0, 1], [2, 3]]")
        for group in self.groups:
            _distinct(group)
        # A host in two groups would hear both, which is no partition.
        _distinct(tuple(self.named()))

    def named(self) -> Iterable[int]:
        return (host for group in self.groups for host in group)

    def keys(self) -> Keys:
        return {"partition": [list(group) for group in self.groups]}

    def __str__(self) -> str:
        return "partition " + " | ".join(" ".join(map(str, group)) for group in self.groups)


class HealPartitions(LabAction, frozen=True, tag="heal"):
    """Ends every partition and every one-way cut; links that are cut stay cut."""

    def keys(self) -> Keys:
        return {"heal": True}

    def __str__(self) -> str:
        return "heal"


AnyAction = (
    CutLinks
    | RestoreLinks
    | KillHosts
    | FreezeHosts
    | ThawHosts
    | StallLinks
    | ChangeLinks
    | DuplicateFrames
    | FlipBits
    | SilenceLinks
    | ReopenLinks
    | PartitionHosts
    | HealPartitions
)


def _distinct(hosts: tuple[int, ...]) -> None:
    if not hosts:
        raise UsageError("an event names no host; write a list of hosts, as in cut = [2]")
    if len(set(hosts)) < len(hosts):
        raise UsageError(f"an event names a host twice in {list(hosts)}; name each once")


def _some(hosts: tuple[int, ...]) -> str:
    return f"host{'s' if len(hosts) > 1 else ''} {', '.join(map(str, hosts))}"
