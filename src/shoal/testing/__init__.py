"""For authors of plug-ins: conformance cases, and worlds of real worker processes to run them in.

Subclass a case in a test file, say how to make the thing, and pytest collects what it must satisfy:

    class TestMine(ExchangeCase):
        def make(self, group, directory):
            return MyExchange(group)
"""

from shoal.testing.codec import CodecCase
from shoal.testing.exchange import ExchangeCase
from shoal.testing.launcher import EngineRun, LauncherCase
from shoal.testing.synchronizer import SynchronizerCase
from shoal.testing.world import WorkerWorld, WorldError, run_world

__all__ = [
    "CodecCase",
    "EngineRun",
    "ExchangeCase",
    "LauncherCase",
    "SynchronizerCase",
    "WorkerWorld",
    "WorldError",
    "run_world",
]
