"""`--on ray`, or `--on ray://HOST:10001`: machines are nodes of a Ray cluster.

    shoal run (a node of the cluster, the entry point of a Ray Job, or outside of it with ray://)
        ├─ ray_relay, for each machine: a placement group of one bundle; in it an actor runs `shoal join`
        └─ ray_relay, without --nodes: says which nodes the cluster has, whenever they change

With `--nodes N` a bundle waits until the cluster has room for it, so an autoscaler adds nodes; when a node is lost its
bundle is asked for again. Without it every node is a machine: nodes that come take part, nodes that go leave. The
invitation is an object of Ray. Drivers are other processes: this one forks, and must have no threads.
"""

import importlib.util
import subprocess
import sys

from shoal.core.clock import Deadline, now
from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.relay import RelayOutput, open_relay

RELAY = "shoal.launch.engines.ray_relay"
ANSWER, PAUSE = 90.0, 10.0
"""Seconds in which a cluster must answer; seconds before a lost watcher is started again."""


class RayEngine(LaunchEngine):
    """`nodes` machines in all, of which this is the first; without it, as many as the cluster has nodes."""

    name = "ray"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--on ray: Ray is not installed here; pip install 'shoal[ray]'")
        self._address = options.where or "auto"
        # Asked before anything starts: Ray would fail in the relay, minutes later.
        if self._address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
            raise UsageError(f"--on {self._address} needs Ray's client; pip install 'ray[client]'")
        self._nodes = NodeWatcher(self._address, options.workers)

    def machines(self) -> list[EngineMachine]:
        if self.options.nodes is not None:
            return [EngineMachine(f"ray{number}", self.options.workers) for number in range(1, self.options.nodes)]
        return [EngineMachine(f"node-{node[:12]}", self.options.workers) for node in self._nodes.read()]

    def start(self, machine: EngineMachine, order: JoinOrder) -> "subprocess.Popen[bytes]":
        words = order.words(machine, "-", f"{order.folder}/machines/{machine.name}")
        node = next((node for node in self._nodes.known if machine.name == f"node-{node[:12]}"), "any")
        return open_relay(relay_words("join", self._address, node, str(machine.workers), *words), order.secret)

    def close(self) -> None:
        self._nodes.close()

    def findings(self) -> list[DoctorFinding]:
        try:
            nodes = list_nodes(self._address)
        except UsageError as error:
            return [DoctorFinding("ray", str(error), False, "start a cluster: ray start --head")]
        return [DoctorFinding(f"ray node {node}", f"{cpus:g} CPUs") for node, cpus in nodes]


class NodeWatcher:
    """The nodes of a cluster that have room for a machine, besides the one of this process; read without waiting."""

    def __init__(self, address: str, workers: int) -> None:
        self._words = relay_words("watch", address, str(workers))
        self._address = address
        self._output: RelayOutput | None = None
        self._due, self._answered = 0.0, False
        self._complaint = "no answer"
        self.known: list[str] = []

    def read(self) -> list[str]:
        """The first time it waits for an answer; UsageError if there is none."""
        if self._output is None and now() >= self._due:
            self._output = RelayOutput(open_relay(self._words))
        deadline = Deadline.after(ANSWER)
        self._hear()
        while not self._answered:
            if self._output is None or deadline.expired:
                self.close()
                raise UsageError(f"--on ray: no cluster at {self._address}: {self._complaint}")
            self._hear(0.1)
        return self.known

    def _hear(self, seconds: float = 0.0) -> None:
        if self._output is None:
            return
        for stream, line in self._output.read(seconds):
            if stream == "out" and line.startswith("nodes"):
                self.known, self._answered = line.split()[1:], True
            elif line.strip():
                self._complaint = line.strip()
        if self._output.ended:  # the head of the cluster was away: what was known holds until it answers
            self.close()

    def close(self) -> None:
        if self._output is not None:
            self._output.end()
        self._output, self._due = None, now() + PAUSE


def relay_words(*words: str) -> list[str]:
    return [sys.executable, "-m", RELAY, *words]


def list_nodes(address: str) -> list[tuple[str, float]]:
    """The living nodes of a cluster, and their CPUs."""
    try:
        done = subprocess.run(relay_words("list", address), capture_output=True, text=True, timeout=ANSWER, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--on ray: the cluster at {address} did not answer within {ANSWER:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UsageError(f"--on ray: no cluster at {address}: {said}")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("node ")]
    return [(line[1], float(line[2])) for line in lines]
