"""The parts of a model as a table: how large each is, how its payloads meet, and what a worker sends of it a step."""

from collections.abc import Mapping, Sequence

import msgspec

from shoal.plan.parts import check_all_used, match_parts
from shoal.plan.plan import Plan
from shoal.plan.traffic import StepTraffic, shape_traffic

Shapes = Mapping[str, Sequence[int]]
"""Of parameters, by name."""


class PartTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a model, between hosts."""

    pattern: str
    plan: str
    tensors: int
    parameters: int
    """Elements."""
    plain: int
    """Bytes a worker sends a step without a codec."""
    sent: int
    """Bytes a worker sends a step, at the most."""
    meets: str

    def cells(self) -> list[str]:
        numbers = (self.tensors, self.parameters, self.plain, self.sent)
        return [self.pattern, *(f"{number:,}" for number in numbers), self.meets]


HEADS = ["part", "tensors", "parameters", "plain bytes", "bytes a step", "meets"]


def part_table(plan: Plan, workers: int, shapes: Shapes) -> list[PartTraffic]:
    """One row for each part; empty for a plan without parts. Raise UsageError where plan and model do not fit."""
    if not plan.parts:
        return []
    names = list(shapes)
    check_all_used(plan.patterns, names)
    chosen = match_parts(plan.patterns, names)
    found = []
    for number, part in enumerate(plan.parts):
        own = {name: shapes[name] for name, of in zip(names, chosen, strict=True) if of == number}
        sent = shape_traffic(part.plan, workers, own)
        found.append(_row(part.pattern, str(part.plan), len(own), sent))
    return found


def _row(pattern: str, plan: str, tensors: int, sent: StepTraffic) -> PartTraffic:
    return PartTraffic(
        pattern=pattern,
        plan=plan,
        tensors=tensors,
        parameters=sent.parameters,
        plain=sent.plain,
        sent=sent.sent,
        meets=sent.meets,
    )


def write_table(rows: Sequence[PartTraffic]) -> str:
    """The rows under their heads, figures to the right, and what all parts come to."""
    parameters, plain, sent = (sum(getattr(row, name) for row in rows) for name in ("parameters", "plain", "sent"))
    total = ["all", f"{sum(row.tensors for row in rows):,}", f"{parameters:,}", f"{plain:,}", f"{sent:,}", ""]
    cells = [HEADS, *(row.cells() for row in rows), total]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
    return "\n".join(_line(row, widths) for row in cells)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    figures = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *figures, row[-1]]).rstrip()
