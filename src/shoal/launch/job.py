"""What a launcher is given: the job, and the watcher it reports to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import StatusBoard
from shoal.lab.spec import LabSpec
from shoal.launch.data_seats import DataServerSeat, RemoteDataServer
from shoal.launch.placement import WorkerPlacement
from shoal.launch.policy import LossPolicy
from shoal.launch.services import RunService


@dataclass(frozen=True)
class LaunchJob:
    """What to run."""

    script: Path
    arguments: list[str]
    workers: int
    run: str
    dir: Path
    plan: str
    seed: int
    threads: int | None
    """Threads per worker; None leaves what the user's environment says."""
    lab: LabSpec | None = None
    """Where the workers are, if not on this host."""
    make: Callable[..., Any] | None = None
    """What makes a worker's run, if not Shoal itself."""
    checkpoint: str = "auto"
    resume: Path | None = None
    """The checkpoint to go on from."""
    attempt: int = 1
    survive: LossPolicy | None = None
    """What may be lost without ending the run; None: nothing."""
    place: "PlacementMaker | None" = None
    """Makes the place where the workers are, if it is neither this host alone nor a lab."""
    remote_slots: tuple[int, ...] = ()
    """Slots of the workers, if they take part in a run of another machine."""
    make_services: "Callable[[str, int, bool], tuple[RunService, ...]]" = lambda plan, workers, grows: ()
    """(plan, workers, whether one worker may be many) -> processes beside the workers, which the plan needs."""

    tuned_servers: Callable[[str], int] = lambda plan: 0
    """How many servers a plan has whose number is tuned; 0: none is."""
    write_servers: Callable[[str, int], str] = lambda plan, servers: plan
    """Such a plan with another number."""
    data_servers: int = 0
    """Processes that prepare batches for the workers."""
    remote_data: tuple[RemoteDataServer, ...] = ()
    """Such processes that others have started."""
    make_data_run: "DataRunMaker | None" = None
    """What makes the run of a script in such a process."""
    spare: int = 0
    """Slots above the workers' own that are kept free for workers added later."""
    tunes: bool = False
    """Whether the launcher adds workers while throughput rises."""

    @property
    def capacity(self) -> int:
        """For how many workers of this launcher the run has memory."""
        return self.workers + self.spare

    @property
    def slots(self) -> Sequence[int]:
        return self.remote_slots or range(self.workers)


DataRunMaker = Callable[[Any, Any, DataServerSeat, int], Any]
"""(a `WorkerContext`, plan, where it serves, number of workers)"""
PlacementMaker = Callable[[LaunchJob, SharedArena], WorkerPlacement]


class JobWatcher:
    """What the launcher tells its caller while workers run; the null member does nothing."""

    def line(self, rank: int, stream: str, text: str) -> None:
        """A worker wrote a line to `stream` (`out` or `err`)."""

    def note(self, text: str) -> None:
        """Something happened that the user should know, and the run goes on."""

    def tick(self, board: StatusBoard) -> None:
        """Time passes, about twenty times a second."""
