"""The contract of an engine: it starts one command on N machines, and knows nothing of training.

    shoal run --on ENGINE … train.py
        SUBMIT   outside of the engine: hand the same command to it, follow it to its end
        HEAD     the first machine: its workers found the run; `start` brings `shoal join` to the other machines
        JOIN     another machine, where the engine has started this very command: join the head

Coordinator, keys, elasticity, record and exit codes are those of `shoal run --listen` and `shoal join`. An engine is
called by the launcher's one thread: it starts no thread, and no call takes more than a moment but `submit` and
`receive`. An invitation travels by a channel that only this user can read, never in arguments or the environment.
"""

import enum
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.address import ADDRESS_VARIABLE, towards
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.relay import RelayOutput, RelayProcess

ANYWHERE = ("192.0.2.1", 9)
"""An address reserved for documentation: the route to it is the route to other machines."""

FINAL = {1: "its script failed", 2: "it was refused", 69: "Shoal is not installed there"}
"""Exit codes of `shoal join`, and of what comes before it, after which trying again would not help."""


class EngineRole(enum.Enum):
    """What `shoal run --on` is to do where it was typed."""

    SUBMIT = "submit"
    HEAD = "head"
    JOIN = "join"


@dataclass(frozen=True)
class EngineOptions:
    """What the command says about machines."""

    where: str = ""
    """The text after the colon of `--on ENGINE:WHERE`."""
    nodes: int | None = None
    """Machines in all, the first one included."""
    workers: int = 1
    """Of each machine, unless `where` says otherwise."""
    time: str = ""
    partition: str = ""
    name: str = ""
    """The run's id."""
    runs: Path = field(default_factory=lambda: Path("runs"))
    command: tuple[str, ...] = ()
    """What follows `shoal run` when the engine starts the same command elsewhere."""


@dataclass(frozen=True)
class EngineMachine:
    """A place where workers can be started."""

    name: str
    """As the engine calls it; a file may be named after it."""
    workers: int = 1


@dataclass(frozen=True)
class JoinOrder:
    """What one machine needs to join."""

    address: str
    """HOST:PORT of the coordinator."""
    secret: str = field(repr=False)
    """The text of an invitation, for this machine alone."""
    run: str = ""
    folder: Path = field(default_factory=Path)
    """Of the run's record on the first machine."""

    def words(self, machine: EngineMachine, key: str, runs: str) -> list[str]:
        """`shoal join` for a machine that finds its key at `key` and keeps its record below `runs`."""
        return ["join", self.address, "--yes", "--workers", str(machine.workers), "--key", key, "--runs", runs]


class LaunchEngine:
    """Base of all engines: the null member, which has no other machine."""

    name = "local"

    def __init__(self, options: EngineOptions) -> None:
        """UsageError if the options make no sense for this engine."""
        self.options, self._expires = options, False

    @property
    def role(self) -> EngineRole:
        return EngineRole.HEAD

    # outside

    checks_first = True
    """Whether the command is checked before it is submitted: an answer may take hours."""

    def allocate(self) -> None:
        """For a pool: hold machines until `close`, where the engine hands them out for a time."""

    def preview(self) -> str:
        """What `submit` would hand to the engine, for `--dry-run`."""
        raise UsageError(f"--dry-run shows what is submitted; --on {self.name} submits nothing")

    def submit(self) -> int:
        """Hand the command over and follow it; returns its exit code. KeyboardInterrupt: end it."""
        raise UsageError(f"--on {self.name} submits nothing: it starts machines from here")

    # on the first machine

    @property
    def begins_again(self) -> bool:
        """Whether the engine has started this command before, so that the run goes on from its checkpoint."""
        return False

    @property
    def keys(self) -> "tuple[str, dict[bytes, int]] | None":
        """The text of the run's key file and who is invited, where the engine brings them along."""
        return None

    private_input = True
    """Whether only this user can read what is written to the standard input of `start`'s process, on its way."""

    def address(self) -> tuple[str, int]:
        """Where the coordinator listens: an address that the other machines reach, and a port (0: any)."""
        # The address this machine uses towards others: a host name may stand for loopback.
        return os.environ.get(ADDRESS_VARIABLE) or towards(*ANYWHERE), 0

    def machines(self) -> list[EngineMachine]:
        """The other machines, as far as they are there now. Asked again while the run trains."""
        return []

    def start(self, machine: EngineMachine, order: JoinOrder) -> RelayProcess | None:
        """Start `shoal join` there; returns a local process that carries its output, ends with its exit code, and
        whose end by SIGTERM ends it. None: the machine has started by itself, and now has its invitation."""
        raise UsageError(f"--on {self.name} has no machine {machine.name!r} to start")

    def stop(self, output: RelayOutput) -> None:
        """Ask a machine to leave after its step, while the others train on."""
        output.ask_to_end()

    def find_final_reason(self, code: int, words: Sequence[str]) -> str:
        """Why starting a machine again would not help, by its exit code and last lines; empty: it may help."""
        return FINAL.get(code, "")

    def expire(self) -> None:
        """The engine has said, by SIGUSR1, that it is about to take the machines away."""
        self._expires = True

    def expiring(self) -> bool:
        """Whether it has."""
        return self._expires

    def requeue(self) -> str:
        """Ask the engine to start the same command again; what to tell the user."""
        return ""

    def close(self) -> None:
        """Remove what the engine has made; called when everything has ended."""

    # on another machine

    def receive(self, deadline: Deadline) -> tuple[str, str]:
        """On a machine that the engine has started: HOST:PORT of the run, and the text of an invitation."""
        raise UsageError(f"--on {self.name} starts shoal join on its machines; nothing is received here")

    @property
    def own_name(self) -> str:
        """What the engine calls this machine."""
        return platform.node()

    # anywhere

    def findings(self) -> list[DoctorFinding]:
        """What `shoal doctor --on` says of this engine here."""
        return []


def this_command(*words: str) -> list[str]:
    """`shoal WORDS` with the interpreter of this process."""
    return [sys.executable, "-m", "shoal", *words]


def run_tool(words: Sequence[str], what: str, seconds: float = 30.0) -> str:
    """The output of one of the engine's own commands; UsageError says what it complained of."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise UsageError(f"{what}: there is no command {words[0]!r} here; see shoal doctor") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{what}: {words[0]} did not answer within {seconds:.0f} s; see shoal doctor") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"{what}: {said}")
    return done.stdout
