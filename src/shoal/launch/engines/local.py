"""`--on local`: processes of this machine. With `--nodes N`, or `local:a,b=2`, every further "machine" is a
`shoal join` beside the run, over loopback: what an engine does, without an engine."""

import subprocess

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine, this_command
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.machines import MachineList
from shoal.launch.engines.relay import open_relay


class LocalEngine(LaunchEngine):
    """Machines are names; what they start runs here."""

    name = "local"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        if options.where and options.nodes is not None:
            raise UsageError(
                f"--on local:{options.where} --nodes {options.nodes}: the list says how many; drop --nodes"
            )
        names = ",".join(f"machine{n}" for n in range(1, options.nodes or 1))
        self._list = MachineList(options.where or names, options.workers, f"--on local:{options.where}")

    def address(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    def machines(self) -> list[EngineMachine]:
        return self._list.read()

    def start(self, machine: EngineMachine, order: JoinOrder) -> "subprocess.Popen[bytes]":
        runs = order.folder / "machines" / machine.name
        return open_relay(this_command(*order.words(machine, "-", str(runs))), order.secret)

    def findings(self) -> list[DoctorFinding]:
        return [DoctorFinding("local", "processes of this machine need nothing else")]
