"""A term of a plan: plain frozen data with a name, written as `name(value, key=value)`.

Terms of the wire axis are declared beside the codecs they stand for, in `wire`, the others in `plan`; both inherit from
here. A term is a frozen dataclass or a frozen msgspec struct and checks itself when it is made.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import msgspec
from msgspec import structs

Axis = Literal["exchange", "pace", "wire", "split", "balance"]

AXES: dict[Axis, str] = {
    "exchange": "how replicas agree",
    "pace": "when replicas agree",
    "wire": "what travels",
    "split": "how the model is split",
    "balance": "who computes how much",
}
"""Axis -> the question it answers, in the order a plan is written."""

INTERNAL: Mapping[str, bool] = {"internal": True}
"""Metadata of a dataclass field that is no argument of the term."""


class TermField(NamedTuple):
    """One argument of a term."""

    name: str
    type: object
    default: object
    required: bool


class NamedTerm:
    """Base of everything that can be written in a plan."""

    __slots__ = ()
    axis: ClassVar[Axis]
    name: ClassVar[str]
    sends_twice: ClassVar[bool] = False
    """Whether a step sends a second time, and waits for that."""

    def __str__(self) -> str:
        if not hasattr(self, "name"):  # a base, or a codec around others, which no plan can name
            return repr(self)
        return write_term(self.name, {field.name: getattr(self, field.name) for field in term_fields(type(self))})

    @classmethod
    def usage(cls) -> str:
        """Return how the term is written, with its defaults: `every(1)`."""
        fields = term_fields(cls)
        return write_term(cls.name, {field.name: field.name if field.required else field.default for field in fields})


def term_fields(kind: type[NamedTerm]) -> list[TermField]:
    """Return the arguments of a term in the order they are written."""
    if issubclass(kind, msgspec.Struct):
        return [TermField(f.name, f.type, f.default, f.required) for f in structs.fields(kind)]
    types = typing.get_type_hints(kind)
    return [
        TermField(field.name, types[field.name], field.default, field.default is dataclasses.MISSING)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # a term is one or the other
        if not field.metadata.get("internal")
    ]


def write_term(name: str, arguments: Mapping[str, object]) -> str:
    """Return the canonical text of one term: a single argument stands plain, several are named."""
    if not arguments:
        return name
    if len(arguments) == 1:
        return f"{name}({write_value(*arguments.values())})"
    return f"{name}({', '.join(f'{key}={write_value(value)}' for key, value in arguments.items())})"


def write_value(value: object) -> str:
    """Return a number as the shortest text that reads back as the same number, and a word as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    # repr of a float is the shortest text that reads back as the same number.
    return value if isinstance(value, str) else repr(value)
