"""Names are ids, never paths: one shape for every name a user, a file or a peer may give."""

import re
import secrets
import time

from shoal.core.errors import UsageError

# No slash and no leading dot, so a name never leaves its folder; 64 letters fit every message and file system.
PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_id(name: str, what: str = "name") -> str:
    """Return `name` if it is an id, else refuse it."""
    if PATTERN.fullmatch(name):
        return name
    raise UsageError(
        f"{what} {name!r} is not an id; use 1 to 64 of a-z, 0-9, '.', '_', '-', starting with a letter or digit"
    )


def new_id(prefix: str = "run") -> str:
    """A new id that sorts by time: `run-20260131-142501-4f2a`."""
    return check_id(f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
