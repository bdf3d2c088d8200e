"""What `--plan` accepts: a named plan, a plan's text, or the path of a TOML file.

exchange = "allreduce"      # each key is optional and holds one term of its axis
pace = "every(1)"
wire = []                   # terms in the order they are applied
split = "replicate"

[[parts]]                   # one for each part of the model, in the order patterns are tried; then the keys above
pattern = "embeddings.*"    # stand here, and only split and balance are those of the whole model
wire = ["topk(0.01)"]

or, in the place of exchange and pace, sizes of groups: [groups] (`plan/group_sizes.py`)
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.core.errors import UsageError
from shoal.core.suggest import hint, shown
from shoal.plan.bind import bind
from shoal.plan.group_sizes import plan_of, read_groups
from shoal.plan.plan import Plan, PlanPart, assemble
from shoal.plan.terms import AXES, Axis, NamedTerm
from shoal.plan.text import parse

SUFFIX = ".toml"
PARTS = "parts"
GROUPS = "groups"
MAX_BYTES = 64 * 1024
"""Of a plan file."""


def load(given: str) -> Plan:
    """Return the plan that `given` names, describes or points to."""
    return load_file(Path(given)) if given.endswith(SUFFIX) else Plan.parse(given)


def load_file(path: Path) -> Plan:
    """Return the plan in a TOML file; every error names the file."""
    try:
        return parse_toml(_read(path))
    except UsageError as error:
        raise UsageError(f"plan file {str(path)!r}: {error}") from None


def parse_toml(text: str) -> Plan:
    """Return the plan in the text of a TOML file."""
    table = _read_table(text)
    if GROUPS in table:
        return _of_groups(table)
    # Taken out, because the rest of the table holds terms of the whole model.
    parts = table.pop(PARTS, [])
    plan = _assemble(table, (*AXES, PARTS, GROUPS), "")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UsageError(f"{PARTS} must be tables; write [[parts]] above the pattern of each")
    # Replaced at the end, so that `Plan` checks the parts against the terms of the whole model.
    return msgspec.structs.replace(plan, parts=tuple(_part(part) for part in parts))


def _of_groups(table: dict[str, object]) -> Plan:
    grouped = plan_of(read_groups(table.pop(GROUPS)))
    if twice := [key for key in ("exchange", "pace", PARTS) if key in table]:
        raise UsageError(f"{GROUPS} and {' and '.join(twice)} both say how workers agree; keep one")
    added = _assemble(table, (*AXES, GROUPS), "")
    return msgspec.structs.replace(added, exchange=grouped.exchange, pace=grouped.pace)


def _assemble(table: dict[str, object], known: Sequence[str], where: str) -> Plan:
    for key in table:
        if key not in known:
            way_out = hint(key, known, "keys are " + ", ".join(known))
            raise UsageError(f"{where}unknown key {shown(key)}; {way_out}")
    return assemble(_term(axis, written) for axis in AXES for written in _texts(axis, table))


def count_workers(given: str) -> int | None:
    """Return the number of workers that the groups of a plan file come to; None where nothing says."""
    if not given.endswith(SUFFIX):
        return None
    path = Path(given)
    try:
        groups = _read_table(_read(path)).get(GROUPS)
        return read_groups(groups).workers if groups is not None else None
    except UsageError as error:
        raise UsageError(f"plan file {str(path)!r}: {error}") from None


def _read_table(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError covers TOMLDecodeError and over-long numbers
        raise UsageError(f"not valid TOML: {' '.join(str(error).split())}") from None


def _part(table: dict[str, object]) -> PlanPart:
    pattern = table.pop("pattern", None)
    if not isinstance(pattern, str):
        raise UsageError(f'every one of {PARTS} has a pattern; write pattern = "embeddings.*"')
    return PlanPart(pattern, _assemble(table, tuple(AXES), f"part {pattern!r}: "))


def _read(path: Path) -> str:
    try:
        # Only a regular file has a known end; reading a pipe could wait for ever.
        if not path.is_file():
            raise UsageError("no such file; write the path of a TOML file, a named plan or terms")
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"holds {path.stat().st_size} bytes; at most {MAX_BYTES} are read, so shorten it")
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError("is not text in UTF-8; save it as UTF-8") from None


def _texts(axis: Axis, table: dict[str, object]) -> list[str]:
    """Return the texts of terms under one key; `wire` holds a list of them, the others one each."""
    if axis not in table:
        return []
    try:
        return msgspec.convert(table[axis] if axis == "wire" else [table[axis]], list[str])
    except msgspec.ValidationError:
        wanted = "a list of texts" if axis == "wire" else "a text"
        raise UsageError(f"{axis} must be {wanted}; write {axis} = {_EXAMPLES[axis]}") from None


_EXAMPLES: dict[Axis, str] = {
    "exchange": '"allreduce"',
    "pace": '"every(1)"',
    "wire": "[]",
    "split": '"replicate"',
}


def _term(axis: Axis, written: str) -> NamedTerm:
    # The same parser as for the text, so that a file can say nothing that a text cannot.
    calls = parse(written)
    if len(calls) > 1:
        raise UsageError(f"{axis} holds {len(calls)} terms; write one, and the others under their own keys")
    term = bind(calls[0])
    if term.axis != axis:
        raise UsageError(f"{axis}: '{term}' says {AXES[term.axis]}; write it under {term.axis}")
    return term
