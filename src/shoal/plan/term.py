"""Base of the terms that this package declares: frozen structs that check themselves and refuse with UsageError."""

from typing import ClassVar

import msgspec

from shoal.core.term import AXES, Axis, NamedTerm

__all__ = ["AXES", "Axis", "CodecTerm", "NamedTerm", "PlanTerm"]


class PlanTerm(NamedTerm, msgspec.Struct, frozen=True, tag_field="term", tag=str.lower):
    """A term of any axis."""


class CodecTerm(PlanTerm, frozen=True):
    """A term of the wire axis that is not a codec: it stands beside one, or instead of one.

    The codecs themselves are declared in `wire/builtin.py` and by other packages.
    """

    axis: ClassVar[Axis] = "wire"
