"""The console a command draws on."""

import io
import sys

from rich.console import Console


def open_console() -> Console:
    """Draws on stdout; a letter its encoding lacks becomes `?` instead of a crash."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False)
