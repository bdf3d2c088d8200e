"""Codecs and synchronizers of other packages: registered by a call, or found by their entry points.

    [project.entry-points."shoal.codecs"]
    sign = "shoal_sign:SignCodec"

    [project.entry-points."shoal.synchronizers"]
    slow = "shoal_slow:SlowAverage"

A package is imported when a plan names its term, or when all terms are listed; never by importing Shoal.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shoal.core.errors import UsageError
from shoal.core.suggest import shown
from shoal.core.term import NamedTerm, term_fields
from shoal.plan.presets import PRESETS
from shoal.plan.terms import TERMS
from shoal.sync.settings import SynchronizerSettings

if TYPE_CHECKING:
    from shoal.wire.settings import CodecSettings

GROUPS = {"shoal.codecs": "codec", "shoal.synchronizers": "synchronizer"}
"""Group of entry points -> what its members are."""
# \Z, because $ would let a newline at the end pass.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}\Z", re.ASCII)
# What a plan's text can say; anything else could not be written into a record.
TYPES = (int, float, str)

Codec = TypeVar("Codec", bound="type[CodecSettings]")
Settings = TypeVar("Settings", bound=type[SynchronizerSettings])

_registered: dict[str, type[NamedTerm]] = {}


class TermPackage(NamedTuple):
    """The distribution that a codec or a synchronizer comes from."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def register_codec(kind: Codec) -> Codec:
    """Give a codec class a term in the plan language, in this process; usable as a decorator.

    The class is a frozen dataclass that inherits from `shoal.wire.codec.GradientCodec`: `name` is the term, its fields
    are the arguments, its docstring is what `shoal plan explain` shows. `shoal run` reads a plan before it runs a
    script, so it finds codecs by entry point only; register a codec where the script itself starts the run (torchrun),
    in tests and in notebooks.
    """
    check_codec(kind)
    _register(kind, "codec")
    return kind


def register_synchronizer(kind: Settings) -> Settings:
    """Give a synchronizer a term in the plan language, in this process; usable as a decorator.

    The class is a frozen dataclass that inherits from `shoal.sync.settings.SynchronizerSettings`; name, fields and
    docstring are as of a codec, and so is where registering is enough (`register_codec`).
    """
    check_synchronizer(kind)
    _register(kind, "synchronizer")
    return kind


def _register(kind: type[NamedTerm], word: str) -> None:
    taken = _registered.get(kind.name)
    # The same class again is no conflict: a notebook runs its cells more than once.
    if taken is not None and (taken.__module__, taken.__qualname__) != (kind.__module__, kind.__qualname__):
        raise UsageError(f"{word} {kind.name!r} is registered by {taken.__module__} already; choose another name")
    _registered[kind.name] = kind


def find_term(name: str) -> type[NamedTerm] | None:
    """Return the term of this name, built in or of another package; None if there is none."""
    # Built-in terms first: an installed package must not change what a plan means.
    return TERMS.get(name) or find_foreign(name)


def all_names() -> list[str]:
    """Return the names of all terms, without importing the packages that some come from."""
    return [*TERMS, *(name for name in foreign_names() if name not in TERMS)]


def find_foreign(name: str) -> type[NamedTerm] | None:
    """Return the registered or installed term of this name; None if there is none."""
    if name in _registered:
        return _registered[name]
    points = _entry_points(name)
    if not points:
        return None
    # Choosing one would make the plan depend on the order of installation.
    if len(points) > 1:
        owners = " and ".join(sorted(str(package_of(point)) for point in points))
        raise UsageError(f"{_word(points[0])} {name!r} is in two packages, {owners}; uninstall one of them")
    kind = _load(points[0])
    # Kept, so that a package is loaded and checked once in a process.
    _registered[name] = kind
    return kind


def foreign_names() -> list[str]:
    """Return the names of all registered and installed terms, without importing their packages."""
    return sorted({*_registered, *(point.name for point in _entry_points())})


def find_package(name: str) -> TermPackage | None:
    """Return the package whose entry point gives this term; None for one that was only registered."""
    points = _entry_points(name)
    return package_of(points[0]) if points else None


def package_of(point: metadata.EntryPoint) -> TermPackage:
    return TermPackage(point.dist.name, point.dist.version) if point.dist is not None else TermPackage("unknown", "?")


def packages_of(terms: Iterable[NamedTerm]) -> dict[str, str]:
    """Return, for every term of another package, its name and `package version`."""
    # Built-in terms come with Shoal, whose version is compared by itself.
    found = {term.name: find_package(term.name) for term in terms if term.name not in TERMS}
    return {name: str(package) for name, package in found.items() if package is not None}


def check_packages(wanted: Mapping[str, str]) -> None:
    """Raise UsageError unless a run's terms of other packages are installed here, in the same minor version."""
    for name, package in wanted.items():
        here, (project, _, version) = find_package(name), package.partition(" ")
        if here is None:
            raise UsageError(
                f"the plan's term {shown(name)} is in package {shown(package)}, which this machine lacks; "
                f"install it (pip install {shown(f'{project}=={version}')}) and join again"
            )
        if here.name != project or here.version.split(".")[:2] != version.split(".")[:2]:
            raise UsageError(
                f"the plan's term {shown(name)} is in package {shown(package)} and this machine has {here}; "
                "install the same on both"
            )


def _entry_points(name: str | None = None) -> list[metadata.EntryPoint]:
    found = [point for group in GROUPS for point in metadata.entry_points(group=group) if name in (None, point.name)]
    # A folder that stands twice on sys.path shows its packages twice.
    return list({(point.name, point.value, package_of(point)): point for point in found}.values())


def _word(point: metadata.EntryPoint) -> str:
    return GROUPS[point.group]


def _load(point: metadata.EntryPoint) -> type[NamedTerm]:
    word = _word(point)
    try:
        kind = point.load()
        CHECKS[word](kind)
    except Exception as error:  # the package's own code: anything may come out of it
        why = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{word} {point.name!r} of package {package_of(point)} cannot be used: {' '.join(why.split())}; "
            "repair or uninstall the package"
        ) from error
    if kind.name != point.name:
        raise UsageError(
            f"{word} {point.name!r} of package {package_of(point)} calls itself {kind.name!r}; "
            "its entry point must have the same name"
        )
    return typing.cast("type[NamedTerm]", kind)


def check_codec(kind: Any) -> None:
    """Raise UsageError unless the class can stand in a plan as a codec."""
    from shoal.wire.codec import GradientCodec  # brings torch along, which a codec needs anyway

    _check_term(kind, GradientCodec, "codec")


def check_synchronizer(kind: Any) -> None:
    """Raise UsageError unless the class can stand in a plan as a synchronizer's term."""
    _check_term(kind, SynchronizerSettings, "synchronizer")


CHECKS: dict[str, Callable[[Any], None]] = {"codec": check_codec, "synchronizer": check_synchronizer}


def _check_term(kind: Any, base: type[NamedTerm], word: str) -> None:
    where = getattr(kind, "__qualname__", repr(kind))
    is_one: bool = isinstance(kind, type) and issubclass(kind, base)  # a bool does not narrow what is asked below
    if not is_one:
        raise UsageError(f"{where} is no {word}; inherit from {base.__module__}.{base.__name__}")
    if inspect.isabstract(kind):
        raise UsageError(f"{where} does not define {', '.join(sorted(kind.__abstractmethods__))}")
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not NAME.match(name):
        raise UsageError(f"{where}.name is {name!r}; give a word of letters, digits, '_' and '-' as its name in plans")
    if name in TERMS or name in PRESETS:
        raise UsageError(f"{where}.name is {name!r}, which is a term or a named plan of Shoal; choose another name")
    if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
        raise UsageError(f"{where} must be a frozen dataclass; put @dataclass(frozen=True) above it")
    if not (kind.__doc__ or "").strip() or (kind.__doc__ or "").startswith(f"{kind.__name__}("):
        raise UsageError(f"{where} has no docstring; say what it does, then Costs:, Cites: and Avoid:")
    for field in term_fields(kind):
        if field.type not in TYPES and typing.get_origin(field.type) is not typing.Literal:
            raise UsageError(
                f"{where}.{field.name} is of type {field.type}; arguments of a term are int, float, str or Literal, "
                "other fields have metadata=shoal.core.term.INTERNAL"
            )
