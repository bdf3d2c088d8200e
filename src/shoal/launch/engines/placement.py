"""The first machine of a run on an engine: it listens for the others, and has the engine start them."""

import re
import shutil
import tempfile
from pathlib import Path

from shoal.core.private_file import append_private
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import StatusBoard
from shoal.launch.engines.base import EngineMachine, JoinOrder, LaunchEngine
from shoal.launch.engines.fleet import MachineFleet
from shoal.launch.job import LaunchJob
from shoal.launch.listen import ListenAddress, ListenPlacement
from shoal.launch.placement import PlacementNews
from shoal.membership.allow_list import AllowList
from shoal.membership.grants import JoinPolicy
from shoal.transport.keys import CurveKeyPair, KeyFile


class EngineListener:
    """Where a run on an engine listens, and the invitations it has made. Secrets are in memory alone."""

    def __init__(self, engine: LaunchEngine, most: int, host: str = "", port: int = 0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-"))  # mode 0700
        self._allow = self._folder / "allow"
        brought = engine.keys
        invited: dict[bytes, int] = {}
        self._pair = CurveKeyPair.new()
        if brought is not None:
            self._pair, invited = KeyFile.parse(brought[0].encode(), "the engine's key").keys, brought[1]
        own = (host, port) if host else engine.address()
        allowed = AllowList(invited, self._allow)
        self.listen = ListenAddress(*own, self._pair, "", allowed, most)

    def invite(self, machine: EngineMachine) -> str:
        """The text of a key file for one start of one machine; the coordinator lets it in from now on."""
        pair = CurveKeyPair.new()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", machine.name)
        append_private(self._allow, f"{pair.public.decode()}={machine.workers} {name}")
        return KeyFile(pair, self._pair.public).text

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class EnginePlacement(ListenPlacement):
    """`listener` is made before, so that what is wrong with it is said before anything starts."""

    def __init__(
        self, engine: LaunchEngine, listener: EngineListener, welcome: JoinPolicy, arena: SharedArena, job: LaunchJob
    ) -> None:
        super().__init__(listener.listen, welcome, arena, job.run, job.workers)
        nodes = engine.options.nodes
        wanted = nodes - 1 if nodes is not None else None
        self._engine, self._listener, self._job = engine, listener, job
        restarts = job.survive.restarts if job.survive is not None else 0
        self._fleet = MachineFleet(engine, self._order, restarts, wanted)
        self._address, self._serves = "", False
        machines = engine.machines()[:wanted]
        # a run that goes on has its state on this machine's disk: the others come as newcomers
        self.expects = sum(machine.workers for machine in machines) if job.resume is None else 0
        self._names = [machine.name for machine in machines]

    def _order(self, machine: EngineMachine) -> JoinOrder:
        return JoinOrder(self._address, self._listener.invite(machine), self._job.run, self._job.dir)

    def invitation(self, address: str) -> str:
        """The coordinator serves: machines may be started from now on."""
        self._address, self._serves = address.removeprefix("tcp://"), True
        if not self._names:
            return ""
        return f"starting {', '.join(self._names)} by {self._engine.name}; the run listens at {self._address}"

    def tick(self, board: StatusBoard) -> None:
        if self._serves:
            self._fleet.tick()
            # Falls only: the first view must not wait for machines that are given up.
            self.expects = min(self.expects, self._fleet.workers)

    def take_news(self) -> list[PlacementNews]:
        return self._fleet.take_news()

    def close(self) -> None:
        self._fleet.close()
        self._engine.close()
        self._listener.close()
