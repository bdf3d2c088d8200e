"""The services and data servers of a run from its launcher's side: started, told of the members, changed, ended.

launcher's tick ── members ──────────────────▶ services between hosts
                ◀─ members that misbehave ───
                ── PlanPrepared … ───────────▶ coordinator, which has asked for those of the next plan
"""

from collections.abc import Callable

from shoal.hosts.status_board import StatusBoard
from shoal.launch.data_seats import DataTierAddress
from shoal.launch.data_servers import DataServerProcesses
from shoal.launch.job import LaunchJob
from shoal.launch.placement import WorkerPlacement
from shoal.launch.plan_services import PlanServices
from shoal.launch.service_folder import ServiceFolder
from shoal.launch.services import REPLACEMENTS, ServiceProcesses
from shoal.launch.supervisor import RunSupervisor


class LauncherServices:
    """Of one launcher, which starts no thread."""

    def __init__(
        self, job: LaunchJob, place: WorkerPlacement, board: StatusBoard, leave: Callable[[], object] = lambda: None
    ) -> None:
        """`leave`: called in a new process, to close what is the launcher's alone."""
        self._job, self._place, self._board, self._leave_launcher = job, place, board, leave
        self._folder = ServiceFolder()
        self._plans = PlanServices(self._make(job.plan, 0), self._begin)
        self._data: DataServerProcesses | None = None

    def _make(self, plan: str, number: int) -> ServiceProcesses:
        survive = self._job.survive
        replacements = REPLACEMENTS if survive is None else survive.restarts
        services = self._job.make_services(plan, self._job.workers if number == 0 else self._job.capacity, number > 0)
        return ServiceProcesses(services, replacements, self._leave, self._folder, number)

    def _begin(self, plan: str, number: int) -> ServiceProcesses:
        made = self._make(plan, number)
        made.begin(self._place.service_seat)
        return made

    @property
    def folder(self) -> str:
        """Where workers of this host reach them."""
        return str(self._folder.path)

    def open(self) -> None:
        """Start those of the first plan; ShoalError if they do not listen."""
        current = self._plans.current
        current.open(self._place.service_seat)
        if current.book:
            self._place.add_servers(current.book)
        if self._job.data_servers:
            self._folder.open()
            self._data = DataServerProcesses(self._job, self._place, self.folder, self._leave_for_data)
            self._data.tick()

    @property
    def data(self) -> DataTierAddress:
        """Return where workers reach the data servers."""
        own = DataTierAddress() if self._data is None else self._data.address
        remote = self._job.remote_data
        servers = (*own.servers, *(each.address for each in remote))
        return DataTierAddress(servers, (*own.keys, *(each.keys for each in remote)))

    def tick(self, supervisor: RunSupervisor | None) -> list[str]:
        """Several times a second; returns a line for each thing that the user should know."""
        if supervisor is not None:
            self._follow_plans(supervisor)
            self._plans.current.tell(supervisor.view)
            for accused in self._plans.current.take_accused():
                supervisor.accuse(accused.member, accused.reason)
        notes = [*self._plans.take_notes(), *self._plans.current.tick(self._board)]
        notes += self._data.tick() if self._data is not None else []
        for note in notes if supervisor is not None else ():
            supervisor.warn(note)  # type: ignore[union-attr]
        return notes

    def _follow_plans(self, supervisor: RunSupervisor) -> None:
        if self._place.services_stay:
            return
        for question in supervisor.take_questions():
            if (answer := self._plans.prepare(question)) is not None:
                supervisor.handle.answer(answer)
        self._plans.follow(supervisor.switches)
        for loss in self._plans.tick():
            supervisor.handle.answer(loss)

    def find_dead(self) -> tuple[str, int] | None:
        """Return the name of a service the run cannot go on without, and the signal it died of (0: none)."""
        return self._plans.find_dead()

    def _leave(self) -> None:
        """In the new process of a service: what follows is the launcher's alone."""
        self.forget()
        self._leave_launcher()

    def _leave_for_data(self) -> None:
        """In a data server, which closes its launcher's side of the tier itself."""
        self._forget_plans()
        self._leave_launcher()

    def forget(self) -> None:
        """In another process: the channels are the launcher's."""
        self._forget_plans()
        if self._data is not None:
            self._data.forget()

    def _forget_plans(self) -> None:
        for each in self._plans.list_started():
            each.forget()

    def close(self) -> None:
        if self._data is not None:
            self._data.close()
        self._plans.close()
        self._folder.close()
