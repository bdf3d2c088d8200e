"""Processes beside `shoal run`: the page of `--watch`, and exporters. They end with the run, however it ends."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from shoal.core.errors import UsageError

PATIENCE_PAGE, PATIENCE_EXPORT = 5.0, 120.0
"""Seconds a page may take to end, and an exporter to write the rest."""
PAGE_PACKAGES = ("starlette", "uvicorn", "plotly")
# From linux/prctl.h; Python has no name for it.
_PR_SET_PDEATHSIG = 1


class RunCompanions:
    """Started before the workers are; `close` is called once the summary is written."""

    def __init__(self, page: bool, exports: Sequence[str]) -> None:
        self._page, self._exports = page, exports
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []
        # Here and not in `start`, because the run's record is open by then.
        check_companions(page, exports)

    def start(self, directory: Path) -> None:
        if self._page:
            self._start("the page", "watch", str(directory))
        for kind in self._exports:
            self._start(f"--export {kind}", "watch", str(directory), "--export", kind)

    def _start(self, what: str, *words: str) -> None:
        parent = os.getpid()

        def end_with_parent() -> None:  # so that a killed launcher leaves no process behind
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            # The parent died before prctl was called, so no signal will come.
            if os.getppid() != parent:
                os._exit(0)

        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run; this one ends after it
            preexec_fn=end_with_parent,
        )
        self._started.append((what, process))

    def close(self) -> None:
        for what, process in self._started:
            page = what == "the page"
            # An exporter ends by itself once it has read the summary; the page never does.
            if page:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_PAGE if page else PATIENCE_EXPORT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE_PAGE)
                if not page:
                    typer.echo(f"shoal: {what} did not end within {PATIENCE_EXPORT:.0f} s; it was killed", err=True)


def check_companions(page: bool, exports: Sequence[str]) -> None:
    """Raise UsageError for a package that is not installed, before anything starts."""
    import importlib.util

    from shoal.watch.export.follow import choose

    for kind in exports:
        choose(kind)
    missing = [name for name in PAGE_PACKAGES if page and importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed; install it with: pip install 'shoal[dashboard]'")
