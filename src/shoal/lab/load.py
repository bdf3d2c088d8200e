"""A lab as text: the short form of the command line, or a TOML file."""

import re
from collections.abc import Callable
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.suggest import shown
from shoal.core.units import BitRate, TimeSpan, parse_share, write_number, write_share
from shoal.lab.link import LabLink
from shoal.lab.spec import HostSpec, LabSpec, alike
from shoal.lab.table import parse_table, write_table

MOST_CHARACTERS = 500
EXAMPLE = "'4 hosts, 100mbit, 20ms, 5ms jitter, 0.5%'"

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_FIGURE = r"\d{1,20}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?"
_PARTS: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("hosts", r"(\d{1,9})\s*hosts?", int),
    ("rate", rf"({_NUMBER}\s*[kmg]?bit)(?:/s)?", BitRate.parse),
    ("rate", r"(unlimited)", BitRate.parse),
    # Before the delay: both are times, and only the word tells them apart.
    ("jitter", rf"({_NUMBER}\s*[num]?s)\s*jitter", TimeSpan.parse),
    ("delay", rf"({_NUMBER}\s*[num]?s)(?:\s*delay)?", TimeSpan.parse),
    ("loss", rf"({_FIGURE}\s*%)(?:\s*loss)?", parse_share),
    ("burst", rf"burst\s+({_FIGURE})", float),
    ("speed", rf"speed\s+({_FIGURE})", float),
    ("seed", r"seed\s+(\d{1,20})", int),
    ("compute", r"(real|replay)", str),
)


def parse_lab(text: str) -> LabSpec:
    """A lab from its short text or from the text of a TOML file."""
    # Every TOML file has an assignment, and no short text has one.
    return parse_table(text) if "=" in text else parse_text(text)


def write_lab(spec: LabSpec) -> str:
    """The canonical text: short if it can be, else TOML."""
    alike = len(set(spec.hosts)) == 1 and not spec.events
    return write_text(spec) if alike else write_table(spec)


def parse_text(text: str) -> LabSpec:
    """The lab that `text` describes."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"the lab has {len(text)} characters; at most {MOST_CHARACTERS} are read, so use a TOML file")
    values: dict[str, object] = {}
    for part in text.split(","):
        name, value = _part(part.strip())
        if name in values:
            raise UsageError(f"{shown(part.strip())} gives {name} a second time; write it once")
        values[name] = value
    if "hosts" not in values:
        raise UsageError(f"{shown(text)} does not say how many hosts; write {EXAMPLE}, or the path of a .toml file")
    return _spec(values)


def write_text(spec: LabSpec) -> str:
    """The shortest text of a lab whose hosts are all alike."""
    host, link = spec.hosts[0], spec.hosts[0].link
    parts = [f"{spec.size} host{'s' if spec.size > 1 else ''}"]
    parts += [str(link.rate)] if link.rate.bits else []
    parts += [str(link.delay)] if link.delay.nanoseconds else []
    parts += [f"{link.jitter} jitter"] if link.jitter.nanoseconds else []
    parts += [write_share(link.loss)] if link.loss else []
    parts += [f"burst {write_number(link.burst)}"] if link.burst != 1 else []
    parts += [f"speed {write_number(host.speed)}"] if host.speed != 1 else []
    parts += [f"seed {spec.seed}"] if spec.seed else []
    parts += [spec.compute] if spec.compute != "real" else []
    return ", ".join(parts)


def _part(part: str) -> tuple[str, object]:
    for name, pattern, read in _PARTS:
        found = re.fullmatch(pattern, part.lower(), re.ASCII)
        if found:
            return name, read(found[1])
    raise UsageError(f"{shown(part)} is not a part of a lab; write {EXAMPLE}, or the path of a .toml file")


def _spec(values: dict[str, object]) -> LabSpec:
    links = {name: values[name] for name in LabLink.__struct_fields__ if name in values}
    host = HostSpec(LabLink(**links), *([values["speed"]] if "speed" in values else []))  # type: ignore[arg-type]
    rest = {name: values[name] for name in ("seed", "compute") if name in values}
    return LabSpec(tuple(alike(int(str(values["hosts"])), host)), **rest)  # type: ignore[arg-type]


SUFFIX = ".toml"
MOST_BYTES = 1 << 20


def load(given: str) -> LabSpec:
    """The lab that `given` describes or points to."""
    return load_file(Path(given)) if given.endswith(SUFFIX) else parse_lab(given)


def load_file(path: Path) -> LabSpec:
    """The lab in a TOML file; every complaint names the file."""
    try:
        return parse_table(_read(path))
    except UsageError as error:
        raise UsageError(f"lab file {str(path)!r}: {error}") from None


def _read(path: Path) -> str:
    try:
        # Only a regular file has an end that is known beforehand; a pipe could be waited for without one.
        if not path.is_file():
            raise UsageError("no such file; write its path, or a text such as '4 hosts, 100mbit, 20ms'")
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"holds {path.stat().st_size} bytes; at most {MOST_BYTES} are read, so shorten it")
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError("is not text in UTF-8; save it as UTF-8") from None
