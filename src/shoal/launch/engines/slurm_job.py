"""A batch job of Slurm: its script, and following it from outside to its end."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineOptions, run_tool, this_command

WARNING = 90
"""Seconds before the time limit at which the run takes a checkpoint and the job is queued again."""
LOOK = 1.0
AWAY = 300.0
"""Seconds without an answer of the controller after which a job is no longer followed."""
ENDING = 90.0
"""Seconds a job may take to end well after Ctrl-C."""
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")


def read_time(text: str) -> str:
    """`2h`, `90m` or `1d12h` as Slurm writes it; what Slurm understands itself stays as it is."""
    found = _TIME.fullmatch(text)
    if not text or found is None or not any(found.groups()):
        if re.fullmatch(r"[0-9:-]+|infinite|UNLIMITED", text or "infinite"):
            return text
        raise UsageError(f"--time {text!r} is no time; write 2h, 90m or 1d12h")
    days, hours, minutes, seconds = (int(group or 0) for group in found.groups())
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def batch_script(options: EngineOptions) -> str:
    """What is handed to sbatch. It has no secret in it: keys are made where the job runs."""
    lines = [
        f"--job-name={options.name}",
        f"--nodes={options.nodes or 1}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={options.workers}",
        "--requeue",
        "--no-kill",
        # B: to the batch shell alone, which is Shoal after `exec`.
        f"--signal=B:USR1@{WARNING}",
        f"--output={log_file(options)}",
        # After a requeue the output of the attempt before stays.
        "--open-mode=append",
    ]
    lines += [f"--time={read_time(options.time)}"] if options.time else []
    lines += [f"--partition={options.partition}"] if options.partition else []
    head = "\n".join(f"#SBATCH {line}" for line in lines)
    command = shlex.join(this_command("run", *options.command))
    # exec: signals of Slurm reach Shoal itself, and its exit code is the job's. Until it listens to SIGUSR1 it must not
    # be ended by it
    return f"#!/bin/sh\n{head}\ntrap '' USR1\ncd {shlex.quote(str(Path.cwd()))} || exit 2\nexec {command}\n"


def log_file(options: EngineOptions) -> Path:
    return options.runs / f"{options.name}.slurm.log"


def allocate(options: EngineOptions) -> str:
    """Hold nodes without running anything on them; the number of the job that holds them."""
    words = ["salloc", "--no-shell", f"--nodes={options.nodes or 1}", f"--job-name=pool-{options.name}"]
    words += [f"--cpus-per-task={options.workers}", "--ntasks-per-node=1"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("--on slurm: there is no command 'salloc' here; see shoal doctor --on slurm") from None
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    if granted is None:
        raise UsageError(f"salloc: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    return granted[1]


def submit(options: EngineOptions) -> tuple[str, Path]:
    """The job's number, and where its output appears."""
    options.runs.mkdir(parents=True, exist_ok=True)
    log = log_file(options)
    log.touch()
    script = options.runs / f"{options.name}.slurm.sh"
    script.write_text(batch_script(options))
    job = run_tool(["sbatch", "--parsable", str(script)], "sbatch").strip().partition(";")[0]
    sys.stderr.write(f"shoal: job {job} is queued; Ctrl-C ends it; its output is in {log}\n")
    return job, log


def follow(job: str, log: Path) -> int:
    """Pass the job's output on until it has ended; returns its exit code. Ctrl-C ends it with a checkpoint."""
    with log.open("rb") as file:
        try:
            return watch(job, file.fileno(), None)
        except KeyboardInterrupt:
            sys.stderr.write(f"shoal: job {job} is asked to end\n")
            run_tool(["scancel", "--batch", "--signal=INT", job], "scancel")
            try:
                return watch(job, file.fileno(), Deadline.after(ENDING)) or 130
            finally:
                run_tool(["scancel", job], "scancel")


def watch(job: str, log: int, deadline: Deadline | None) -> int:
    """A job that failed has ended only if the next look finds it so too: it may be on its way back to the queue."""
    failed, away = "", Deadline.after(AWAY)
    while True:
        try:
            state, code = look(job)
            away = Deadline.after(AWAY)
        except UsageError:
            if away.expired:
                raise
            state, code = "", 0  # a busy controller does not end the job
        while data := os.read(log, 1 << 16):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        if state == "COMPLETED" or (state in OVER and state == failed):
            return code or (0 if state == "COMPLETED" else 1)
        if deadline is not None and (deadline.expired or state == "PENDING"):
            return 130
        failed = state or failed
        time.sleep(LOOK)


def look(job: str) -> tuple[str, int]:
    """State and exit code of a job."""
    said = run_tool(["scontrol", "--oneliner", "show", "job", job], "scontrol")
    state = re.search(r"\bJobState=(\w+)", said)
    code = re.search(r"\bExitCode=(\d+):(\d+)", said)
    exit_code, number = (int(code[1]), int(code[2])) if code else (0, 0)
    return state[1] if state else "UNKNOWN", exit_code or (128 + number if number else 0)
