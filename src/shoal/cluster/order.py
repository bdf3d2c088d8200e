"""Memory order between processes: data first, then the flag that says it is there.

x86 keeps stores in order, so nothing is needed. Elsewhere a flag could overtake its data; two turns of a lock are an
acquire and a release on each side of it, the only full fence pure Python can buy.
"""

import platform
import threading

_IN_ORDER = platform.machine().lower() in {"x86_64", "amd64", "i686", "i386"}
_lock = threading.Lock()


def fence() -> None:
    """No memory access of this thread crosses this line."""
    if not _IN_ORDER:
        for _ in range(2):
            with _lock:
                pass


def full_fence() -> None:
    """As `fence`, and what was written before is seen by all before anything is read after: x86 does not promise it."""
    with _lock:
        pass
