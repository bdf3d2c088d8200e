"""Turn a term as written into the term it means: look up its name and fit its arguments to its fields."""

import typing

import msgspec

from shoal.core.errors import UsageError
from shoal.core.suggest import hint, shown
from shoal.core.term import NamedTerm, TermField, term_fields, write_term, write_value
from shoal.plan.presets import PRESETS
from shoal.plan.registry import all_names, find_term
from shoal.plan.text import TermCall, Value

BOOLEANS: dict[Value, bool] = {"true": True, "false": False}


def bind(call: TermCall) -> NamedTerm:
    """Return the term that `call` means; raise UsageError for an unknown name and arguments that do not fit."""
    kind = find_term(call.name)
    if kind is None:
        raise UsageError(f"unknown term {shown(call.name)}; {hint(call.name, [*all_names(), *PRESETS], _vocabulary())}")
    fields = {field.name: field for field in term_fields(kind)}
    values = _named(call, kind, list(fields))
    for name, field in fields.items():
        if field.required and name not in values:
            raise UsageError(f"{call.name}: argument {name!r} is missing; write {kind.usage()}")
    converted = {name: _convert(kind, fields[name], value) for name, value in values.items()}
    try:
        return kind(**converted)
    except ValueError as error:  # a codec of another package checks its arguments as any class does
        raise UsageError(f"{write_term(call.name, converted)}: {error}; write {kind.usage()}") from None


def _vocabulary() -> str:
    return f"terms are {', '.join(all_names())}; named plans are {', '.join(PRESETS)}"


def _named(call: TermCall, kind: type[NamedTerm], known: list[str]) -> dict[str, Value]:
    """Return all arguments by name; plain ones take the fields' names in order."""
    if not known and (call.plain or call.named):
        raise UsageError(f"{call.name} takes no arguments; write {call.name}")
    if len(call.plain) > len(known):
        raise UsageError(f"{call.name}: {len(call.plain)} arguments are too many; write {kind.usage()}")
    # Not strict: arguments may be left out at the end.
    values = dict(zip(known, call.plain, strict=False))
    for name, value in call.named:
        if name not in known:
            way_out = hint(name, known, f"write {kind.usage()}")
            raise UsageError(f"{call.name}: unknown argument {shown(name)}; {way_out}")
        if name in values:
            raise UsageError(f"{call.name}: argument {name!r} is given twice; keep one")
        values[name] = value
    return values


def _convert(kind: type[NamedTerm], field: TermField, value: Value) -> object:
    """Return `value` as the field's type; a float never passes for a whole number, not even 1.0."""
    try:
        # msgspec would convert 1.0 to 1, and the plan's text would not be what was written.
        if int in _options(field.type) and float not in _options(field.type) and isinstance(value, float):
            raise msgspec.ValidationError
        # A plan's text has no truth values, only words.
        if field.type is bool and value in BOOLEANS:
            return BOOLEANS[value]
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        given = f"{kind.name}({field.name}={write_value(value)})"
        raise UsageError(f"{given}: {field.name} must be {_words(field.type)}; write {kind.usage()}") from None


def _options(kind: object) -> tuple[object, ...]:
    """The types a field may have."""
    return typing.get_args(kind) or (kind,)


def _words(kind: object) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if int in _options(kind) and len(words := [a for o in _options(kind) for a in typing.get_args(o)]) > 0:
        return f"a whole number or {', '.join(words)}"
    if typing.get_args(kind):  # a number that may be left out
        kind = typing.get_args(kind)[0]
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(typing.cast("type", kind), "a word")
