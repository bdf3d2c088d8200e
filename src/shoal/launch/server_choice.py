"""Tunes the number of servers where a plan says `server(auto)`: measures, asks for switches, says what it chose."""

import time
from collections import Counter

from shoal.core.clock import now
from shoal.core.measurements import ChoiceMade
from shoal.launch.job import LaunchJob
from shoal.launch.server_tuning import ServerTuner
from shoal.launch.supervisor import RunSupervisor


class ServerChoice:
    """Of one run. It begins anew when members come or go, and when the user switches from such a plan and back."""

    def __init__(self, job: LaunchJob) -> None:
        self._job = job
        self._tuner: ServerTuner | None = None
        self._members: tuple[int, ...] = ()

    def follow(self, supervisor: RunSupervisor) -> list[str]:
        """Several times a second; returns a line when a number is chosen."""
        plan = supervisor.plan or self._job.plan
        servers = self._job.tuned_servers(plan)
        if not servers:
            self._tuner = None
            return []
        if self._tuner is None or supervisor.members != self._members:
            self._tuner, self._members = ServerTuner(servers), supervisor.members
        tuner = self._tuner
        if tuner.done or supervisor.asked or not supervisor.members:
            return []
        samples = Counter({slot: int(supervisor.board.read(slot)["samples"]) for slot in supervisor.slots})
        wanted = tuner.observe(now(), servers, samples)
        if wanted is not None:
            supervisor.handle.switch(self._job.write_servers(plan, wanted))
        return self._tell(supervisor, plan, tuner) if tuner.done else []

    def _tell(self, supervisor: RunSupervisor, plan: str, tuner: ServerTuner) -> list[str]:
        chosen = self._job.write_servers(plan, tuner.wanted)
        step = supervisor.board.front(self._job.capacity) or 0
        rates = {str(servers): rate for servers, rate in tuner.rates.items()}
        supervisor.record(ChoiceMade(at=time.time(), step=step, codec=chosen, reason=str(tuner), steps=rates))
        return [f"{tuner}; '{chosen}' is best"]
