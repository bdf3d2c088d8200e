"""A word in shared memory on which a process sleeps until another one rings: a futex, where the system has it.

    seen = bell.look()            before looking whether there is work
    … no work …
    bell.sleep(seen, 0.1)         returns at once if somebody has rung since `look`

Elsewhere than on Linux (x86-64, arm64) sleeping is looking every half a millisecond.
"""

import ctypes
import platform
import sys
import time

# Numbers of the system call; libc has no function for it.
_CALLS = {"x86_64": 202, "aarch64": 98}
_FUTEX = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
# Without FUTEX_PRIVATE_FLAG, because the sleepers are other processes.
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
NAP = 5e-4
"""Seconds between two looks where there is no futex."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class ProcessDoorbell:
    """Four bytes of `memory`, which begins at a multiple of four."""

    def __init__(self, memory: memoryview) -> None:
        self._word = ctypes.c_uint32.from_buffer(memory)
        # Not PyDLL: ctypes releases the interpreter's lock while the call sleeps.
        self._libc = ctypes.CDLL(None) if _FUTEX is not None else None

    def look(self) -> int:
        return self._word.value

    def ring(self) -> None:
        """Wake the processes that sleep on it. They see what was written before."""
        # The time and not a count: two that ring at once would both write count + 1, which a sleeper may have seen.
        self._word.value = time.monotonic_ns() & 0xFFFFFFFF
        self._call(_WAKE, _ALL, None)

    def sleep(self, seen: int, seconds: float) -> None:
        """Until it rings, unless it has since `seen`; at the most `seconds`."""
        if self._libc is None:
            end = time.monotonic() + seconds
            while self.look() == seen and time.monotonic() < end:
                time.sleep(NAP)
            return
        whole = int(seconds)
        # The kernel compares the word with `seen` as it puts us to sleep, so a ring in between is not missed.
        self._call(_WAIT, seen, ctypes.byref(_TimeSpec(whole, int((seconds - whole) * 1e9))))

    def _call(self, operation: int, value: int, span: object) -> None:
        if self._libc is not None:
            word = ctypes.c_void_p(ctypes.addressof(self._word))
            self._libc.syscall(ctypes.c_long(_FUTEX or 0), word, operation, ctypes.c_uint32(value), span, None, 0)
