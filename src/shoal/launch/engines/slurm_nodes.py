"""The nodes of a Slurm job, as a process inside of it sees them, a step on one of them, and what Slurm needs here."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.launch.engines.base import run_tool
from shoal.launch.engines.findings import DoctorFinding

TOOLS = ("sbatch", "srun", "scontrol", "scancel")

INTERACTIVE = 0xFFFFFFFA
"""Number of the step that is the user's shell; those above it are no steps of the user's either."""


def count_machines(said: Mapping[str, str]) -> int:
    """Tasks of the step this process is in, or else nodes of its job; 0: it is in none."""
    if not said.get("SLURM_JOB_ID"):
        return 0
    in_step = int(said.get("SLURM_STEP_ID", INTERACTIVE)) < INTERACTIVE
    return int(said.get("SLURM_STEP_NUM_TASKS" if in_step else "SLURM_JOB_NUM_NODES", "1"))


def list_nodes(job: str) -> list[str]:
    """Those that are left of a job's allocation."""
    nodes = run_tool(["squeue", "--noheader", "--jobs", job, "--format=%N"], "squeue").strip()
    return run_tool(["scontrol", "show", "hostnames", nodes], "scontrol").split() if nodes else []


def srun_words(node: str, cpus: str, reads_input: bool) -> list[str]:
    """What starts one task on a node, beside what already runs in the job.

    The agent of a pool reads orders from its input. An invitation never goes that way: srun does not encrypt it
    (`private_input`).
    """
    # --overlap: the step may use processors that other steps of the job hold.
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--kill-on-bad-exit=0"]
    # Seconds: a step that gets no processors fails instead of waiting in a queue for ever.
    step += ["--immediate=60", "--quiet", f"--job-name=join-{node}"]
    step += ["--unbuffered"] if reads_input else ["--input=none"]
    return [*step, f"--cpus-per-task={cpus}"] if cpus else step


def find_tools(runs: Path) -> list[DoctorFinding]:
    """Slurm's commands, whether its controller answers, and what it has free."""
    found = [DoctorFinding(tool, shutil.which(tool) or "not found", bool(shutil.which(tool))) for tool in TOOLS]
    if not all(finding.good for finding in found):
        return [*found, DoctorFinding("slurm", "its commands are missing", False, "log in to a node of the cluster")]
    try:
        states = run_tool(["sinfo", "--noheader", "--format=%D %T %P"], "sinfo")
    except UsageError as error:
        return [*found, DoctorFinding("slurm", str(error), False, "is slurmctld running, and munge?")]
    idle = sum(int(line.split()[0]) for line in states.splitlines() if re.search(r"\bidle\b", line))
    shared = f"{runs}: every node must see it; give another with --runs"
    return [*found, DoctorFinding("nodes", f"{idle} idle"), DoctorFinding("shared folder", shared)]
