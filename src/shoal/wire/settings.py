"""A codec as a plan describes it: its name, its arguments and its declared properties; without torch.

`GradientCodec` inherits from `CodecSettings`, so a codec class is its own term: plain frozen data that is written, read
and compared in plans. The codecs of this package inherit from settings of their own (`builtin.py`), because `shoal plan
list` and the parsing of a plan must not import torch.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from shoal.core.errors import UsageError
from shoal.core.term import Axis, NamedTerm, term_fields

if TYPE_CHECKING:
    from shoal.wire.codec import GradientCodec


@dataclass(frozen=True)
class CodecWrapping:
    """The wrappers around a codec; None means the codec's own default."""

    feedback: bool | None = None
    decay: float = 1.0
    momentum: float | None = None
    clip: float = 0.0
    masking: bool = True
    warmup: int = 0
    least: int | None = None
    words: tuple[str, ...] = ()


class CodecSettings(NamedTerm):
    """The name and arguments of a codec, as a frozen dataclass; refuses arguments out of range with UsageError."""

    __slots__ = ()
    axis: ClassVar[Axis] = "wire"
    codec_class: ClassVar[str] = ""
    """`module:class` of the codec that these settings make; empty where the class is the codec itself."""
    compares: ClassVar[bool] = False
    """Whether it compares changes with the values that they change (`EncodeContext.reference`)."""

    def make_codec(self) -> "GradientCodec":
        """Return the codec with these arguments."""
        # Imported when a run needs it: codecs import torch, and plans are read without.
        module, _, name = self.codec_class.partition(":")
        codec: GradientCodec = getattr(import_module(module), name)(**self.codec_arguments())
        return codec

    def codec_arguments(self) -> dict[str, object]:
        """Return what the codec class is called with: the term's own arguments, unless some are for its wrapping."""
        return {field.name: getattr(self, field.name) for field in term_fields(type(self))}

    def make_wrapping(self, workers: int) -> CodecWrapping:
        """Return what the term puts around its codec on one of `workers` workers."""
        return CodecWrapping()

    def check_whole(self, field: str, least: int, most: int) -> None:
        """Raise UsageError unless the argument is a whole number from `least` to `most`."""
        check_whole(self, field, getattr(self, field), least, most)

    def check_number(self, field: str, least: float, most: float) -> None:
        """Raise UsageError unless the argument is a finite number from `least` to `most`."""
        check_number(self, field, getattr(self, field), least, most)


def check_whole(term: NamedTerm, field: str, value: int, least: int, most: int) -> None:
    # The exact type: True is an int, but a plan would print it as a word.
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"{term.name}({field}={value}): {field} must be a whole number from {least} to {most}")


def check_number(term: NamedTerm, field: str, value: float, least: float, most: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise UsageError(f"{term.name}({field}={value}): {field} must be a number from {least:g} to {most:g}")


def share_clip(clip: float, workers: int) -> float:
    """Return a worker's share of a clipping norm.

    Its gradient is noisier than the mean by the root of the number of workers, and counts 1/workers in the sum.
    """
    return clip / workers / math.sqrt(workers)
