"""`shoal pool start`: keeps an agent on every machine of an engine, and forks the heads of runs from a process that has
imported torch already. One thread; machines are leased to one run at a time, and given back when it has ended."""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.private_file import write_private
from shoal.launch.engines.base import EngineMachine, JoinOrder, LaunchEngine
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
    StopPool,
    close_all,
    socket_file,
)
from shoal.launch.engines.relay import RelayOutput
from shoal.launch.pool.agent import AgentNews, AgentOrder

# Seconds of a round without news, and in which runs may end when the pool does.
TICK, ENDS = 0.02, 20.0
LEASE_VARIABLE = "SHOAL_POOL"
"""Set for the head of a run that a pool has started: the pool's name."""


class ServeOrder(JoinOrder):
    """Starts an agent where an engine would start `shoal join`."""

    def words(self, machine: EngineMachine, key: str, runs: str) -> list[str]:
        return ["pool", "serve"]


@dataclass
class PoolMachine:
    """A machine and its agent."""

    machine: EngineMachine
    output: RelayOutput
    ready: bool = False
    leases: dict[int, "MachineLease"] = field(default_factory=dict)
    count: int = 0


@dataclass
class MachineLease:
    """The run that has leased a machine, and the pipes for its output."""

    connection: PoolConnection
    pipes: dict[str, int]

    def end(self, code: int) -> None:
        close_all(list(self.pipes.values()))
        self.connection.send(CommandEnded(code=code))


class PoolServer:
    """`run` executes the words of a command in a forked process, and returns its exit code."""

    def __init__(self, engine: LaunchEngine, name: str, run: Callable[[list[str]], int]) -> None:
        self._engine, self._name, self._run = engine, name, run
        self._file = socket_file(name)
        self._secrets = engine.options.runs.absolute() / f".pool-{name}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._machines: dict[str, PoolMachine] = {}
        self._connections: dict[int, PoolConnection] = {}
        self._heads: dict[int, PoolConnection] = {}
        """Process number of a head -> connection of the command that asked for the run."""
        self._selector = selectors.DefaultSelector()
        self._number, self.stopping, self._opened = 0, False, False

    def open(self) -> None:
        """Start all agents; UsageError if a pool of this name lives."""
        if _lives(self._name):
            raise UsageError(f"a pool {self._name!r} is there already; give another --name")
        self._file.unlink(missing_ok=True)  # of one that was killed
        self._listener.bind(str(self._file))
        self._opened = True
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)
        for machine in self._engine.machines():
            process = self._engine.start(machine, ServeOrder("", "", self._name, self._engine.options.runs))
            if process is None:
                raise UsageError(f"--on {self._engine.name} starts its machines itself; a pool needs ssh, slurm or ray")
            self._machines[machine.name] = PoolMachine(machine, RelayOutput(process))

    @property
    def ready(self) -> int:
        return sum(each.ready for each in self._machines.values())

    def serve(self, seconds: float = TICK) -> None:
        """One round: what was asked, what agents say, which heads have ended."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                connection = PoolConnection(self._listener.accept()[0])
                self._connections[connection.end.fileno()] = connection
                self._selector.register(connection.end, selectors.EVENT_READ)
            elif key.fd in self._connections:
                self._hear(self._connections[key.fd])
        for each in list(self._machines.values()):
            self._look(each)
        self._reap()

    def _hear(self, connection: PoolConnection) -> None:
        message, came = connection.receive(wait=False)
        match message:
            case StartRun() if len(came) == 3:
                self._start_head(connection, message, came)
            case LeaseMachine() if len(came) == 2:
                self._lease(connection, message, came)
            case AskMachines():
                connection.send(PoolMachines(engine=self._engine.name, rows=tuple(map(_row, self._machines.values()))))
            case SendSignal():
                self._signal(connection, message.number)
            case LeaveRun():
                self._leave(connection)
            case StopPool():
                self.stopping = True
            case _:
                close_all(came)
        if connection.over:
            # the command that asked is gone, so its run ends as if its terminal had been closed
            self._signal(connection, signal.SIGTERM)
            self._leave(connection)
            del self._connections[connection.end.fileno()]
            self._selector.unregister(connection.end)
            connection.close()

    def _start_head(self, connection: PoolConnection, asked: StartRun, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(asked, descriptors)
        close_all(descriptors)
        self._heads[pid] = connection

    def _become(self, asked: StartRun, descriptors: list[int]) -> NoReturn:
        """In the child: the head of a run, as if it had been typed where the pool's user typed it."""
        code = 1
        try:
            os.setpgid(0, 0)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            close_all(descriptors)
            for connection in self._connections.values():
                connection.end.close()
            self._listener.close()
            for each in self._machines.values():
                each.output.close()  # or an agent's input would not end with the pool
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
            os.chdir(asked.folder)
            # The variables are those of the command that asked, not of the shell that started the pool.
            os.environ.clear()
            os.environ.update({**asked.environment, LEASE_VARIABLE: self._name})
            sys.argv = ["shoal", *asked.words]
            code = self._run(list(asked.words))
        finally:
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
            os._exit(code)

    def _signal(self, connection: PoolConnection, number: int) -> None:
        for pid, asked in self._heads.items():
            if asked is connection:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _lease(self, connection: PoolConnection, asked: LeaseMachine, pipes: list[int]) -> None:
        each = self._machines.get(asked.machine)
        lease = MachineLease(connection, dict(zip(("out", "err"), pipes, strict=True)))
        if each is None or not each.ready or each.leases:
            lease.end(75)  # it may be free by the next try
            return
        self._number, each.count = self._number + 1, each.count + 1
        each.leases[self._number] = lease
        order = AgentOrder(self._number, asked.words, asked.secret, folder=asked.folder)
        self._order(each, order if self._engine.private_input else self._hide(order))

    def _hide(self, order: AgentOrder) -> AgentOrder:
        """The same order with the secret in a file that only this user can read."""
        self._secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = self._secrets / f"{order.number}.key"
        key.unlink(missing_ok=True)  # of a pool that was killed
        write_private(key, order.secret)
        return msgspec.structs.replace(order, secret="", key=str(key))

    def _leave(self, connection: PoolConnection) -> None:
        for each in self._machines.values():
            for number, lease in each.leases.items():
                if lease.connection is connection:
                    self._order(each, AgentOrder(number, leave=True))

    def _order(self, each: PoolMachine, order: AgentOrder) -> None:
        stdin = each.output.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(msgspec.json.encode(order) + b"\n")
            stdin.flush()

    def _look(self, each: PoolMachine) -> None:
        for stream, line in each.output.read():
            try:
                news = msgspec.json.decode(line, type=AgentNews)
            except msgspec.MsgspecError:
                sys.stderr.write(f"{each.machine.name}: {line}\n" if stream == "err" else "")
                continue
            self._take(each, news)
        if each.output.process.poll() is not None:
            for lease in each.leases.values():
                # EX_TEMPFAIL, as in engines/pool.py: another try may succeed
                lease.end(75)
            each.output.close()
            del self._machines[each.machine.name]
            sys.stderr.write(f"shoal: the pool has lost {each.machine.name}\n")

    def _take(self, each: PoolMachine, news: AgentNews) -> None:
        lease = each.leases.get(news.number)
        if news.number == 0:
            each.ready = True
        elif lease is not None and news.code is not None:
            del each.leases[news.number]
            # a signal is told as a shell tells it: 128 and its number
            lease.end(news.code if news.code >= 0 else 128 - news.code)
        elif lease is not None:
            with contextlib.suppress(OSError):
                os.write(lease.pipes[news.stream], f"{news.text}\n".encode())

    def _reap(self) -> None:
        for pid, connection in list(self._heads.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._heads[pid]
                code = os.waitstatus_to_exitcode(status)
                connection.send(CommandEnded(code=code if code >= 0 else 128 - code))

    def close(self) -> None:
        """End all runs, give all machines back; nothing stays behind."""
        for pid in self._heads:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = Deadline.after(ENDS)
        while self._heads and not deadline.expired:
            self.serve()
        # Ever more urgent: a closed input first, which lets workers end their step.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            for each in self._machines.values():
                each.output.ask_to_end()
                if number is not None:
                    each.output.signal(number)
            deadline = Deadline.after(ENDS / 4)
            while any(m.output.process.poll() is None for m in self._machines.values()) and not deadline.expired:
                self._selector.select(TICK)
                for each in self._machines.values():
                    each.output.read()
        for each in self._machines.values():
            each.output.close()
        for connection in self._connections.values():  # of commands that have not hung up yet
            connection.close()
        self._selector.close()
        self._listener.close()
        if self._opened:  # else it is another pool's
            self._file.unlink(missing_ok=True)
            shutil.rmtree(self._secrets, ignore_errors=True)
        self._engine.close()


def _lives(name: str) -> bool:
    try:
        PoolConnection.open(name).close()
    except UsageError:
        return False
    return True


def _row(each: PoolMachine) -> MachineRow:
    return MachineRow(each.machine.name, each.machine.workers, each.ready, bool(each.leases), each.count)
