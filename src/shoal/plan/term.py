"""What every term is: a small frozen value that names its axis and checks itself when made."""

from typing import ClassVar, Literal

import msgspec
from msgspec import structs

from shoal.plan.text import write

Axis = Literal["exchange", "pace", "wire", "split", "balance"]

AXES: dict[Axis, str] = {
    "exchange": "how replicas agree",
    "pace": "when replicas agree",
    "wire": "what travels",
    "split": "how the model is split",
    "balance": "who computes how much",
}
"""Axis -> the question it answers, in the order a plan is written."""


class PlanTerm(msgspec.Struct, frozen=True, tag_field="term", tag=str.lower):
    """Base of all terms: plain data that checks itself when made and refuses with UsageError."""

    axis: ClassVar[Axis]
    name: ClassVar[str]

    def __str__(self) -> str:
        return write(self.name, structs.asdict(self))

    @classmethod
    def usage(cls) -> str:
        """How the term is written, with its defaults: `every(1)`."""
        fields = structs.fields(cls)
        return write(cls.name, {f.name: f.name if f.required else f.default for f in fields})


class CodecTerm(PlanTerm, frozen=True):
    """Base of the terms of the wire axis; a plan holds a chain of them (plan/codecs.py, plan/wrappers.py)."""

    axis: ClassVar[Axis] = "wire"
