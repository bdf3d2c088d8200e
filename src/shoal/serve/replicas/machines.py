"""Where replicas run: an engine's machines, started and watched by the supervisor of the server.

    supervisor ── fork ──> the server: HTTP, batches, the hub of all replicas   (replaced when it ends)
        └── engine ──> one `shoal replica` for each machine ── connects ──> the hub

The supervisor has no threads and answers nothing. What a machine needs to be let in travels as for `shoal join`.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.launch.address import find_free_port
from shoal.launch.engines.base import EngineMachine, EngineRole, JoinOrder, LaunchEngine
from shoal.launch.engines.fleet import MachineFleet
from shoal.launch.engines.placement import EngineListener
from shoal.membership.coordinator_socket import CoordinatorSocket
from shoal.membership.credentials import ServerCredentials
from shoal.serve.replicas.hub import ReplicaHub
from shoal.serve.replicas.protocol import LARGEST_MESSAGE

MOST_REPLICAS = 256
HELD = "held-"
"""How names of folders with copies of programs begin."""
# Slurm and MPI would have to submit a job that never ends.
STARTS_MACHINES = ("local", "ssh", "ray")
"""Engines that start a command on machines from here, without a job that is submitted."""


class ReplicaOrder(JoinOrder):
    """Starts a replica where an engine would start `shoal join`."""

    def words(self, machine: EngineMachine, key: str, runs: str) -> list[str]:
        return ["replica", self.address, "--key", key, "--name", machine.name, "--slots", str(machine.workers)]


class ReplicaMachines:
    """Used by the supervisor; `open_hub` in the server."""

    def __init__(self, engine: LaunchEngine, say: Callable[[str], None]) -> None:
        """UsageError if the engine starts no machines from here, or names none."""
        if engine.name not in STARTS_MACHINES or engine.role is not EngineRole.HEAD:
            raise UsageError(
                f"--on {engine.name} starts no machines for a server; there are {', '.join(STARTS_MACHINES)}"
            )
        self._names = [machine.name for machine in engine.machines()]
        if not self._names:
            raise UsageError(f"--on {engine.name} has no machine; name some, as in --on ssh:hostA,hostB")
        self._engine, self._say = engine, say
        self._listener = EngineListener(engine, MOST_REPLICAS)
        listen = self._listener.listen
        # chosen now, so that a server that replaces a killed one listens where the replicas look for it
        self._place = f"{listen.host}:{listen.port or find_free_port(listen.host)}"
        wanted = len(self._names) if engine.options.nodes is not None else None
        self._fleet = MachineFleet(engine, self._order, None, wanted, "the server")

    def _order(self, machine: EngineMachine) -> JoinOrder:
        return ReplicaOrder(self._place, self._listener.invite(machine), self._engine.options.name)

    def tick(self) -> None:
        """Several times a second. UsageError once every machine is given up."""
        self._fleet.tick()
        for news in self._fleet.take_news():
            self._say(news.text)
        if given_up := self._fleet.given_up:
            raise UsageError(f"--on {self._engine.name}: no machine is left; {', '.join(given_up)} cannot be used")

    def open_hub(self, folder: Path, say: Callable[[str], None]) -> ReplicaHub:
        """In the server's process, which the machines are not of."""
        self._fleet.forget()
        for left in folder.glob(f"{HELD}*"):  # of a server that was killed
            shutil.rmtree(left, ignore_errors=True)
        held = Path(tempfile.mkdtemp(prefix=HELD, dir=folder))
        listen = self._listener.listen
        lock = ServerCredentials(listen.pair, listen.allowed, listen.allowed)
        hub = ReplicaHub(
            lambda: CoordinatorSocket(f"tcp://{self._place}", lock, LARGEST_MESSAGE, most_unsent=0), held, say
        )
        hub.start()
        return hub

    def close(self) -> None:
        self._fleet.dismiss()
        self._fleet.close()
        self._engine.close()
        self._listener.close()
