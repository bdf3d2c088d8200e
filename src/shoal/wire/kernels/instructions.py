"""The processor's conversion between float32 and fp16, which numba has no function for.

Imported only where numba is. A processor that lacks it (x86 before 2012) takes the torch reference.
"""

import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@cache
def halves() -> bool:
    """Return whether this processor converts fp16."""
    # Part of the base instructions there.
    if platform.machine() in ("arm64", "aarch64"):
        return True
    return bool(llvmlite.binding.get_host_cpu_features().get("f16c", False))


@intrinsic
def to_half(_context: Any, _value: Any) -> tuple[Any, Callable[..., Any]]:
    """The bits of a float32 as fp16, to the nearest even."""

    def emit(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.int16(types.float32), emit


@intrinsic
def from_half(_context: Any, _bits: Any) -> tuple[Any, Callable[..., Any]]:
    """An fp16 given as its bits, as float32."""

    def emit(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), emit
