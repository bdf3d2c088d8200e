"""`--on slurm`: submits a batch job from outside; inside of one, starts `shoal join` on its other nodes.

    outside                  shoal run --on slurm --nodes 4 --time 2h train.py   writes the script, sbatch, follows
    in a batch script        shoal run --on slurm train.py       on the first node; srun starts the other nodes
    as the tasks of a step   srun shoal run --on slurm train.py  task 0 is the head, the others join it

A lost node does not end the job (--no-kill): a spare node of the allocation takes its place, or the run is smaller.
Before the time is over Slurm sends SIGUSR1: the run takes a checkpoint, the job is queued again and goes on from there.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.core.clock import Deadline, now
from shoal.core.errors import UsageError
from shoal.core.private_file import write_private
from shoal.launch.engines.base import (
    EngineMachine,
    EngineOptions,
    EngineRole,
    JoinOrder,
    LaunchEngine,
    run_tool,
    this_command,
)
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.relay import RelayOutput, open_relay
from shoal.launch.engines.rendezvous import FileRendezvous
from shoal.launch.engines.slurm_job import allocate, batch_script, follow, submit
from shoal.launch.engines.slurm_nodes import find_tools, list_nodes, srun_words

LOOK = 10.0
"""Seconds between two questions for the nodes of the job."""


class SlurmEngine(LaunchEngine):
    """By the variables that Slurm sets for a job, a step and a task."""

    name = "slurm"
    private_input = False  # srun does not encrypt what it passes on

    def __init__(self, options: EngineOptions, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        if options.where:
            raise UsageError(f"--on slurm:{options.where}: write --on slurm --partition {options.where} --nodes N")
        self._said = os.environ if environment is None else environment
        self._job = self._said.get("SLURM_JOB_ID", "")
        tasks = self._said.get("SLURM_STEP_NUM_TASKS", "1")
        self._task = self._said.get("SLURM_PROCID", "0") if tasks != "1" else None
        """Which task of a step this is; None: the only one."""
        self._tasks = int(tasks)
        self._nodes: list[EngineMachine] = []
        self._looked = -LOOK - 1.0
        self._allocated = ""
        self._keys: set[Path] = set()
        # The number of the restart too: files of an attempt that was killed must not be taken for this one's.
        start = f"{self._job}-{self._said.get('SLURM_STEP_ID', 'batch')}-{self.restarts}"
        self._meeting = FileRendezvous(options.runs, f"slurm-{start}")

    @property
    def restarts(self) -> int:
        return int(self._said.get("SLURM_RESTART_COUNT", "0"))

    @property
    def role(self) -> EngineRole:
        if not self._job:
            return EngineRole.SUBMIT
        return EngineRole.JOIN if self._task not in (None, "0") else EngineRole.HEAD

    @property
    def begins_again(self) -> bool:
        return self.restarts > 0

    @property
    def own_name(self) -> str:
        return f"task{self._task}" if self._task is not None else self._said.get("SLURMD_NODENAME", super().own_name)

    def preview(self) -> str:
        return batch_script(self.options)

    def submit(self) -> int:
        return follow(*submit(self.options))

    def machines(self) -> list[EngineMachine]:
        """The other tasks of the step, or the nodes that are left of the allocation besides this one."""
        if self._task is not None:
            return [EngineMachine(f"task{task}", self.options.workers) for task in range(1, self._tasks)]
        if now() - self._looked > LOOK:  # the controller has more to do than to answer us
            self._looked = now()
            own = self._said.get("SLURMD_NODENAME", "")
            names = [name for name in list_nodes(self._job) if name != own]
            self._nodes = [EngineMachine(name, self.options.workers) for name in names]
        return self._nodes

    def start(self, machine: EngineMachine, order: JoinOrder) -> "subprocess.Popen[bytes] | None":
        if self._task is not None:
            self._meeting.give(machine.name, order)
            return None
        folder = order.folder / "machines" / machine.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = folder / "key"
        key.unlink(missing_ok=True)
        write_private(key, order.secret)
        self._keys.add(key)
        step = srun_words(machine.name, self._said.get("SLURM_CPUS_ON_NODE", ""), reads_input=not order.secret)
        return open_relay([*step, *this_command(*order.words(machine, str(key), str(folder)))])

    def allocate(self) -> None:
        """Outside of a job: hold nodes without running anything on them yet."""
        if not self._job:
            self._job = self._allocated = os.environ["SLURM_JOB_ID"] = allocate(self.options)

    def find_final_reason(self, code: int, words: Sequence[str]) -> str:
        """Of srun's own failures all are worth another try, but that of a node which is not the job's any more."""
        if not any(word.startswith("srun: error: Unable to") for word in words):
            return super().find_final_reason(code, words)
        return "its node is no longer in the job" if any("not available" in word for word in words) else ""

    def stop(self, output: RelayOutput) -> None:
        output.signal(signal.SIGTERM)  # srun passes it on

    def requeue(self) -> str:
        """The same job again, under the same number."""
        try:
            run_tool(["scontrol", "requeue", self._job], "scontrol requeue")
        except UsageError as error:
            return f"the time of job {self._job} is over, and it was not queued again: {error}"
        return f"the time of job {self._job} is over; it is queued again and goes on from the checkpoint"

    def receive(self, deadline: Deadline) -> tuple[str, str]:
        return self._meeting.take(self.own_name, deadline)

    def close(self) -> None:
        self._meeting.close()
        for key in self._keys:
            key.unlink(missing_ok=True)
        if self._allocated:
            run_tool(["scancel", self._allocated], "scancel")

    def findings(self) -> list[DoctorFinding]:
        return find_tools(self.options.runs)
