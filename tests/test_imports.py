"""Importing any module of the package changes nothing in the process that does it."""

import subprocess
import sys

PROGRAM = """
import importlib, logging, os, pkgutil, random, signal, sys, threading, warnings
import numpy, torch, torch.distributed, msgspec, rich.console, typer  # their own changes are theirs
import pytest  # shoal.testing is for tests, and may import it

def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "process group": torch.distributed.is_initialized(),
        "threads": threading.active_count(),
        "torch threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "random": (random.getstate(), torch.get_rng_state().tolist(), repr(numpy.random.get_state())),
        "hooks": (sys.excepthook, sys.stdout, sys.stderr),
        "path": list(sys.path),
    }

before = state()
import shoal
names = [m.name for m in pkgutil.walk_packages(shoal.__path__, "shoal.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
    after = state()
    changed = [what for what in before if after[what] != before[what]]
    assert not changed, (name, changed)
print(len(names))
"""


def test_importing_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert int(done.stdout) > 60
