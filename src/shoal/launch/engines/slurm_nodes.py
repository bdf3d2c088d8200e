"""The nodes of a Slurm job, as a process inside of it sees them, and a step on one of them."""

from collections.abc import Mapping

from shoal.launch.engines.base import run_tool

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

    The agent of a pool reads orders from its input. An invitation never goes that way: srun does not encrypt it.
    """
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--kill-on-bad-exit=0"]
    step += ["--immediate=60", "--quiet", f"--job-name=join-{node}"]
    step += ["--unbuffered"] if reads_input else ["--input=none"]
    return [*step, f"--cpus-per-task={cpus}"] if cpus else step
