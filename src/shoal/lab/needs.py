"""The requirements of a lab, and which of them this machine lacks."""

import os
import shutil
import sys
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.lab.switch import compiled, compiler

TUN = "/dev/net/tun"
# Bits of linux/capability.h.
_NET_ADMIN, _SYS_ADMIN = 12, 21


def missing() -> list[str]:
    """Return the missing requirements, each with the way to get it; empty if a lab can run."""
    if not sys.platform.startswith("linux"):
        return ["Linux (network namespaces are its own; use a virtual machine)"]
    found = []
    if not _may(_NET_ADMIN, _SYS_ADMIN):
        found.append("root (use sudo; in a container --cap-add NET_ADMIN --cap-add SYS_ADMIN)")
    if not shutil.which("ip") or not shutil.which("tc"):
        found.append("iproute2 (apt-get install iproute2)")
    # A switch compiled before needs no compiler.
    if not compiled().exists() and compiler() is None:
        found.append("a C compiler (apt-get install gcc libc6-dev)")
    if not _tun_opens():
        found.append(f"{TUN} (modprobe tun; in a container --device {TUN})")
    return found


def require() -> None:
    """Refuse to go on if anything is missing."""
    if found := missing():
        raise UsageError(f"a lab cannot run here: it needs {', and '.join(found)}")


def _may(*capabilities: int) -> bool:
    status = Path("/proc/self/status").read_text()
    held = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return all(held >> number & 1 for number in capabilities)


def _tun_opens() -> bool:
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
