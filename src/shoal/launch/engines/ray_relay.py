"""A driver of Ray for one machine: `python -m shoal.launch.engines.ray_relay ADDRESS WORKERS WORDS…`.

Reads an invitation from standard input, has an actor run `shoal WORDS` where Ray has room, passes its output on and
ends with its exit code. With an address alone it prints the nodes of the cluster. Whatever ends this process ends the
actor.
"""

import contextlib
import logging
import os
import signal
import sys
from typing import Any

from shoal.launch.engines.base import this_command
from shoal.launch.engines.lease import StdinLease, read_secret
from shoal.launch.engines.relay import RelayOutput, open_relay

NODE_LOST = 75
"""Exit code where Ray has lost the actor: worth another try."""
LOOK = 0.1


class JoinActor:
    """Runs `shoal join` on its node."""

    def start(self, words: list[str], folder: str, secret: str) -> None:
        place = folder if os.path.isdir(folder) else None
        self._output = RelayOutput(open_relay(this_command(*words), secret, place))

    def read(self) -> tuple[list[tuple[str, str]], int | None]:
        """Lines since the last time, and the exit code once it has ended."""
        lines = self._output.read(LOOK)
        return (lines, self._output.process.returncode) if self._output.ended else (lines, None)

    def leave(self) -> None:
        self._output.ask_to_end()


def connect(address: str) -> None:
    import ray  # only where it is needed: Ray changes the process that imports it

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)


def run_there(address: str, workers: int, words: list[str]) -> int:
    """The exit code of `shoal WORDS` on some node."""
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    secret, lease = read_secret(0)
    connect(address)
    group = placement_group([{"CPU": workers}])
    try:
        while not group.wait(LOOK):
            if ended(lease):
                return 0
        where = PlacementGroupSchedulingStrategy(group)
        actor: Any = ray.remote(JoinActor).options(num_cpus=workers, scheduling_strategy=where).remote()
        ray.get(actor.start.remote(words, os.getcwd(), ray.put(secret.decode())))
        return follow(actor, lease)
    except RayError as error:
        sys.stderr.write(f"shoal: Ray lost the machine: {str(error).splitlines()[0]}\n")
        return NODE_LOST
    finally:
        with contextlib.suppress(RayError):
            remove_placement_group(group)
        ray.shutdown()


def follow(actor: Any, lease: StdinLease | None) -> int:
    """Pass on what the actor's process writes, to its end."""
    import ray

    asked = False
    while True:
        lines, code = ray.get(actor.read.remote(), timeout=60.0)
        for stream, line in lines:
            (sys.stdout if stream == "out" else sys.stderr).write(f"{line}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        if code is not None:
            return int(code) if code >= 0 else 128 - int(code)
        if not asked and ended(lease):
            asked = True
            actor.leave.remote()


def ended(lease: StdinLease | None) -> bool:
    try:
        if lease is not None:
            lease.check()
    except KeyboardInterrupt:
        return True
    return False


def main(arguments: list[str]) -> int:
    address, *rest = arguments
    if rest:
        return run_there(address, int(rest[0]), rest[1:])
    import ray

    connect(address)
    list_nodes: Any = ray.nodes
    for node in list_nodes():
        if node["Alive"]:
            sys.stdout.write(f"node {node['NodeManagerAddress']} {node['Resources'].get('CPU', 0)}\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
