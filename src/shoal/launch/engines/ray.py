"""`--on ray`, or `--on ray://HOST:10001`: machines are nodes of a Ray cluster.

    shoal run (a node of the cluster, or the entry point of a Ray Job)
        └─ ray_relay, for each machine: a placement group of one bundle; in it an actor runs `shoal join`

A bundle waits until the cluster has room for it, so an autoscaler adds nodes; when a node is lost its bundle is asked
for again. The invitation is an object of Ray. The driver is another process: this one forks, and must have no threads.
"""

import importlib.util
import subprocess
import sys

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine
from shoal.launch.engines.findings import Finding
from shoal.launch.engines.relay import open_relay

RELAY = "shoal.launch.engines.ray_relay"


class RayEngine(LaunchEngine):
    """`nodes` machines in all, of which this is the first; without it, as many as the cluster has nodes."""

    name = "ray"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--on ray: Ray is not installed here; pip install 'shoal[ray]'")
        self._address = options.where or "auto"
        self._others = options.nodes - 1 if options.nodes is not None else None

    def _count(self) -> int:
        if self._others is None:
            self._others = len(list_nodes(self._address)) - 1
        return self._others

    def machines(self) -> list[EngineMachine]:
        return [EngineMachine(f"ray{number}", self.options.workers) for number in range(1, self._count() + 1)]

    def start(self, machine: EngineMachine, order: JoinOrder) -> "subprocess.Popen[bytes]":
        words = order.words(machine, "-", f"{order.folder}/machines/{machine.name}")
        command = [sys.executable, "-m", RELAY, self._address, str(machine.workers), *words]
        return open_relay(command, order.secret)

    def findings(self) -> list[Finding]:
        try:
            nodes = list_nodes(self._address)
        except UsageError as error:
            return [Finding("ray", str(error), False, "start a cluster: ray start --head")]
        return [Finding(f"ray node {node}", f"{cpus:g} CPUs") for node, cpus in nodes]


def list_nodes(address: str) -> list[tuple[str, float]]:
    """The living nodes of a cluster, and their CPUs."""
    words = [sys.executable, "-m", RELAY, address]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--on ray: the cluster at {address} did not answer within 90 s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UsageError(f"--on ray: no cluster at {address}: {said}")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("node ")]
    return [(line[1], float(line[2])) for line in lines]
