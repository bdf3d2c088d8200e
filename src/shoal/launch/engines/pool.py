"""`--on pool[:NAME]`: machines that `shoal pool start` keeps warm. The command is handed to the pool, which forks the
head from a process that has imported torch; the head leases machines, whose agents fork `shoal join` likewise."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, EngineRole, JoinOrder, LaunchEngine
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.pool_protocol import (
    AskMachines,
    CommandEnded,
    LeaseMachine,
    LeaveRun,
    MachineRow,
    PoolConnection,
    PoolMachines,
    SendSignal,
    StartRun,
)
from shoal.launch.engines.relay import RelayProcess

LEASE_VARIABLE = "SHOAL_POOL"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


class PoolEngine(LaunchEngine):
    """Inside of the pool it leases machines; outside it hands the command over."""

    name = "pool"
    checks_first = False

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self._pool = options.where or "default"
        self._leased: set[str] = set()

    @property
    def role(self) -> EngineRole:
        return EngineRole.HEAD if os.environ.get(LEASE_VARIABLE) == self._pool else EngineRole.SUBMIT

    def submit(self) -> int:
        """Passes signals on, and ends as the run does."""
        connection = PoolConnection.open(self._pool)

        def forward(number: int, frame: FrameType | None) -> None:
            connection.send(SendSignal(number=number))

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            sys.stdout.flush()
            words = ("run", *self.options.command)
            run = StartRun(words=words, folder=str(Path.cwd()), environment=dict(os.environ))
            connection.send(run, (0, 1, 2))  # the head writes to this command's own terminal: nothing is passed on
            while True:
                message, _ = connection.receive()
                if isinstance(message, CommandEnded):
                    return message.code
                if connection.over:
                    raise UsageError(f"the pool {self._pool!r} has ended before the run")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            connection.close()

    def _rows(self) -> tuple[MachineRow, ...]:
        connection = PoolConnection.open(self._pool)
        connection.send(AskMachines())
        message, _ = connection.receive()
        connection.close()
        return message.rows if isinstance(message, PoolMachines) else ()

    def address(self) -> tuple[str, int]:
        """Loopback will do where all machines of the pool are this one."""
        if all(row.name.startswith("machine") for row in self._rows()) and not os.environ.get("SHOAL_ADDRESS"):
            return "127.0.0.1", 0
        return super().address()

    def machines(self) -> list[EngineMachine]:
        """Those that are free, and those this run has."""
        rows = [row for row in self._rows() if row.ready and (not row.leased or row.name in self._leased)]
        return [EngineMachine(row.name, row.workers) for row in rows]

    def start(self, machine: EngineMachine, order: JoinOrder) -> RelayProcess:
        self._leased.add(machine.name)
        return LeasedProcess(self._pool, machine, order)

    def findings(self) -> list[DoctorFinding]:
        try:
            rows = self._rows()
        except UsageError as error:
            return [DoctorFinding("pool", str(error), False)]
        return [DoctorFinding(f"pool {row.name}", "leased" if row.leased else "free", row.ready) for row in rows]


class LeaseInput:
    """Stands for the standard input of a leased process: to close it is to ask for its end."""

    def __init__(self, connection: PoolConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._connection.send(LeaveRun())


class LeasedProcess:
    """A process on a leased machine, as a relay would show it."""

    def __init__(self, pool: str, machine: EngineMachine, order: JoinOrder) -> None:
        self._connection = PoolConnection.open(pool)
        out, err = os.pipe(), os.pipe()
        runs = str(order.folder / "machines" / machine.name)
        asked = LeaseMachine(
            machine=machine.name,
            words=tuple(order.words(machine, "-", runs)),
            secret=order.secret,
            folder=str(Path.cwd()),
        )
        self._connection.send(asked, (out[1], err[1]))
        os.close(out[1])  # the agent's side has copies; with ours open the pipe would never end
        os.close(err[1])
        self.stdin = LeaseInput(self._connection)
        self.stdout, self.stderr = os.fdopen(out[0], "rb"), os.fdopen(err[0], "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            message, _ = self._connection.receive(wait=False)
            if isinstance(message, CommandEnded):
                self.returncode = message.code
            elif self._connection.over:
                # EX_TEMPFAIL: the pool has lost the machine, and another try may succeed.
                self.returncode = 75
            if self.returncode is not None:
                self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self._connection.over:
            self._connection.close()  # the pool then asks the machine to leave
        self.returncode = 128 + number if self.returncode is None else self.returncode
