"""Where the workers of `shoal run` are: on this host, on the emulated hosts of a lab, or in another machine's run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.groups.base import WorkerGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import StatusBoard
from shoal.launch.data_seats import DataServerSeat, DataTierAddress, seats_at_files
from shoal.launch.services import ServiceSeat, seat_at_file
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.server import CoordinatorSetup
from shoal.transport.endpoint import BookEntry

SERVICES_STAY = "workers of several hosts know servers by keys that are handed out when the run begins"


@dataclass(frozen=True)
class PlacementNews:
    """A line from another machine."""

    text: str
    worker: int | None = None
    """The worker that wrote it; None: a message to the user."""
    stream: str = "out"


@dataclass(frozen=True)
class CoordinatorEndpoint:
    """Where the coordinator of a run sits."""

    address: str
    lock: ServerCredentials | None = None
    enter: Callable[[], object] = lambda: None
    """In its freshly forked process: go there."""
    welcome: JoinPolicy | None = None
    """Whom it lets in from other machines."""


class WorkerPlacement(ABC):
    """Opened by the launcher before it forks, asked by it now and then, closed when all workers are gone."""

    speed: float = 1.0
    """In a worker that has entered: below 1, it has to slow itself down by sleeping."""
    expects: int = 0
    """How many workers of other machines the run begins with; may fall while they are on their way."""
    servers: Sequence[BookEntry] = ()
    """The run's servers, where its workers are on several hosts."""
    services_stay: str = SERVICES_STAY
    """Why services can neither be started nor ended while the run trains; empty if they can."""
    replay: bool = False
    """Whether workers sleep instead of computing, once it is known how long it takes."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def coordinator_endpoint(self, folder: Path) -> CoordinatorEndpoint:
        """For the coordinator; `folder` is the user's alone."""

    def make_coordinator(self, run: str, directory: Path, workers: int, folder: Path) -> CoordinatorHandle:
        """Return the run's coordinator, which the caller starts; its log is in `directory`."""
        endpoint = self.coordinator_endpoint(folder)
        rules = MembershipRules(members=workers, remote=self.expects, prepares=not self.services_stay)
        log = directory / "members.log"
        setup = CoordinatorSetup(run, endpoint.address, log, rules, endpoint.lock, welcome=endpoint.welcome)
        return CoordinatorHandle(setup, endpoint.enter)

    def invitation(self, address: str) -> str:
        """What to tell the user when the coordinator serves at `address`; empty: nothing."""
        return ""

    def service_seat(self, number: int, file: str) -> ServiceSeat:
        """Where a service of the run listens; `file` is in a folder of the user's alone."""
        return seat_at_file(number, file)

    def seat_data_servers(self, number: int, folder: str) -> tuple[list[DataServerSeat], DataTierAddress]:
        """Where data servers listen, and where this launcher's workers reach them; `folder` is the user's alone."""
        return seats_at_files(number, folder)

    def add_servers(self, servers: Sequence[BookEntry]) -> None:
        """They listen, and no worker is started yet."""
        self.servers = servers

    def key(self, rank: int) -> ClientCredentials | None:
        """By which the coordinator knows a worker; None: it needs none."""
        return None

    @abstractmethod
    def enter(self, rank: int, size: int, session: ElasticSession | None = None) -> WorkerGroup:
        """In a freshly forked worker: go there and meet the others, or follow the session's views."""

    @abstractmethod
    def tick(self, board: StatusBoard) -> None:
        """Time passes, about twenty times a second."""

    def take_news(self) -> "list[PlacementNews]":
        """What other machines have said since the last time."""
        return []

    @abstractmethod
    def close(self) -> None: ...


class LocalPlacement(WorkerPlacement):
    """Here: the null member."""

    services_stay = ""

    def __init__(self, arena: SharedArena) -> None:
        self.arena = arena

    def open(self) -> None:
        pass

    def coordinator_endpoint(self, folder: Path) -> CoordinatorEndpoint:
        return CoordinatorEndpoint(f"ipc://{folder}/coordinator")

    def enter(self, rank: int, size: int, session: ElasticSession | None = None) -> WorkerGroup:
        return SharedGroup(self.arena, rank, size, session)

    def tick(self, board: StatusBoard) -> None:
        pass

    def close(self) -> None:
        pass
