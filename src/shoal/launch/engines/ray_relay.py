"""A driver of Ray: `python -m shoal.launch.engines.ray_relay …`.

    join ADDRESS NODE WORKERS WORDS…   has an actor run `shoal WORDS` on a node (`any`: where Ray has room), with the
                                       invitation on standard input; passes its output on, ends with its exit code
    watch ADDRESS WORKERS              prints the nodes that have room for so many workers, whenever they change
    list ADDRESS                       prints the nodes once, with their CPUs

Whatever ends this process ends the actor.
"""

import contextlib
import logging
import os
import select
import signal
import sys
import time
from typing import Any

from shoal.launch.engines.base import this_command
from shoal.launch.engines.lease import StdinLease, read_secret
from shoal.launch.engines.relay import RelayOutput, open_relay

NODE_LOST = 75
"""Exit code where Ray has lost the actor: worth another try."""
LOOK, WATCH = 0.1, 2.0
"""Seconds between two questions for an actor's output, and for the nodes of the cluster."""
ANY = "any"


class JoinActor:
    """Runs `shoal join` on its node."""

    def start(self, words: list[str], folder: str, secret: str) -> None:
        place = folder if os.path.isdir(folder) else None
        self._output = RelayOutput(open_relay(this_command(*words), secret, place))

    def read(self) -> tuple[list[tuple[str, str]], int | None]:
        """Lines since the last time, and the exit code once it has ended."""
        lines = self._output.read(LOOK)
        return (lines, self._output.process.returncode) if self._output.ended else (lines, None)

    def write(self, data: bytes) -> None:
        """Orders for the agent of a pool."""
        stdin = self._output.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(data)
            stdin.flush()

    def leave(self) -> None:
        self._output.ask_to_end()


def connect(address: str) -> None:
    import ray  # only where it is needed: Ray changes the process that imports it

    # Quiet: output of actors comes through `read`, and Ray's own lines are no worker's.
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)


def run_there(address: str, node: str, workers: int, words: list[str]) -> int:
    """The exit code of `shoal WORDS` on a node."""
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    pools = words[0] == "pool"  # an agent is invited nowhere yet: its orders come later, by the same input
    secret, lease = (b"", None) if pools else read_secret(0)
    connect(address)
    pinned = None if node == ANY else [{"ray.io/node-id": node}]
    group = placement_group([{"CPU": workers}], bundle_label_selector=pinned)
    try:
        while not group.wait(LOOK):
            if ended(lease):
                return 0
        where = PlacementGroupSchedulingStrategy(group)
        actor: Any = ray.remote(JoinActor).options(num_cpus=workers, scheduling_strategy=where).remote()
        ray.get(actor.start.remote(words, os.getcwd(), ray.put(secret.decode())))
        return follow(actor, lease, pass_input=pools)
    except RayError as error:
        sys.stderr.write(f"shoal: Ray lost the machine: {str(error).splitlines()[0]}\n")
        return NODE_LOST
    finally:
        with contextlib.suppress(RayError):
            remove_placement_group(group)
        ray.shutdown()


def follow(actor: Any, lease: StdinLease | None, pass_input: bool = False) -> int:
    """Pass on what the actor's process writes, to its end, and with `pass_input` what this one reads."""
    import ray

    asked = False
    while True:
        lines, code = ray.get(actor.read.remote(), timeout=60.0)
        for stream, line in lines:
            (sys.stdout if stream == "out" else sys.stderr).write(f"{line}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        if code is not None:
            # As a shell tells the end by a signal.
            return int(code) if code >= 0 else 128 - int(code)
        if not asked and (pass_orders(actor) if pass_input else ended(lease)):
            asked = True
            actor.leave.remote()


def pass_orders(actor: Any) -> bool:
    """Hand what has come on standard input to the actor, in order; whether the input has ended."""
    while select.select([0], [], [], 0)[0]:
        if not (data := os.read(0, 1 << 16)):
            return True
        actor.write.remote(data)
    return False


def ended(lease: StdinLease | None) -> bool:
    try:
        if lease is not None:
            lease.check()
    except KeyboardInterrupt:
        return True
    return False


def find_nodes() -> list[dict[str, Any]]:
    """Those that live."""
    import ray

    list_nodes: Any = ray.nodes
    return [node for node in list_nodes() if node["Alive"]]


def watch(address: str, workers: int) -> int:
    """Until standard input ends. The node of this driver is left out: its machine is the first of the run."""
    import ray

    connect(address)
    outside = address.startswith("ray://")  # a client is on no node
    own = "" if outside else ray.get_runtime_context().get_node_id()
    lease, said = StdinLease(0), None
    while not ended(lease):
        rooms = [node for node in find_nodes() if node["Resources"].get("CPU", 0) >= workers]
        found = sorted(node["NodeID"] for node in rooms if node["NodeID"] != own)
        if found != said:
            said = found
            sys.stdout.write(f"{' '.join(['nodes', *found])}\n")
            sys.stdout.flush()
        time.sleep(WATCH)
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["join", address, node, workers, *words]:
            return run_there(address, node, int(workers), words)
        case ["watch", address, workers]:
            return watch(address, int(workers))
        case ["list", address]:
            connect(address)
            for found in find_nodes():
                sys.stdout.write(f"node {found['NodeManagerAddress']} {found['Resources'].get('CPU', 0)}\n")
            return 0
    raise SystemExit(f"ray_relay: no command {' '.join(arguments[:1])!r}; it is join, watch or list")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
