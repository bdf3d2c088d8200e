"""Requests of `shoal switch` and `shoal scale` to a run, and what is tuned: workers, servers."""

from collections import Counter

from shoal.core.clock import now
from shoal.launch.announcement import RunAnnouncement
from shoal.launch.run_requests import ScaleRequest, SwitchRequest
from shoal.launch.server_choice import ServerChoice
from shoal.launch.supervisor import RunSupervisor
from shoal.launch.worker_tuning import WorkerTuner

AUTO_TOKEN = "auto"
"""Of a request for more or fewer workers that nobody made by a command."""


class UserRequests:
    """Reads requests from the run's announcement, and passes them on to its supervisor."""

    def __init__(self, announcement: RunAnnouncement, tuner: WorkerTuner | None, servers: ServerChoice) -> None:
        self._announcement, self._tuner, self._servers = announcement, tuner, servers

    def follow(self, supervisor: RunSupervisor, *, stopping: bool) -> list[str]:
        """Do what is asked; return a line for each thing done."""
        notes: list[str] = []
        if (switch := self._announcement.take(SwitchRequest)) is not None:
            supervisor.switch(switch.plan, switch.token)
        if (scale := self._announcement.take(ScaleRequest)) is not None and not stopping:
            notes += filter(None, [supervisor.scale(scale)])
            self._tuner = None  # from now on the user decides
        if self._tuner is not None and not supervisor.scaling.asked and not stopping:
            notes += self._tune(supervisor, self._tuner)
        if not stopping:
            notes += self._servers.follow(supervisor)
        return notes

    def _tune(self, supervisor: RunSupervisor, tuner: WorkerTuner) -> list[str]:
        """Add a worker while throughput rises; take those out that bring nothing."""
        notes = []
        members = sorted(supervisor.members)
        samples = Counter({slot: int(supervisor.board.read(slot)["samples"]) for slot in supervisor.slots})
        wanted, before = tuner.observe(now(), len(members), samples), len(members)
        if wanted is not None or (tuner.done and tuner.rates):
            count = tuner.wanted
            request = ScaleRequest(add=max(0, count - before), remove=tuple(members[count:]), token=AUTO_TOKEN)
            notes.append(supervisor.scale(request, f"{tuner}{f'; {count} is best' if tuner.done else ''}"))
        if tuner.done:
            self._tuner = None
        return notes
