"""How many files and sockets this process may have open at a time."""

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one, for this process and its children; returns it.

    The usual soft limit of 1024 protects programs that use select(2). A run needs descriptors for every peer, and must
    have some left for the script when strangers take up connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Only raising the soft limit: the hard one is the administrator's.
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system may set a lower limit of its own: keep what there is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
