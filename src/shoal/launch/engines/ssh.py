"""`--on ssh:hostA,hostB=2`: machines that this user reaches by OpenSSH without a password.

    this machine ── ssh hostA ── sh: is Shoal there? ── shoal join ADDRESS --key - ──> connects back to ADDRESS
                      └ standard input: the invitation; its end tells hostA to leave

Nothing has to run on the far side but sshd. Names, users, ports and keys are those of ~/.ssh/config; $SHOAL_SSH is the
command, if it is not `ssh`.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.private import open_private
from shoal.launch.address import ADDRESS_VARIABLE, towards
from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine, run_tool
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.machines import MachineList
from shoal.launch.engines.relay import open_relay

COMMAND_VARIABLE = "SHOAL_SSH"
OPTIONS = {
    "BatchMode": "yes",  # standard input is for the invitation, so ssh cannot ask for a password
    "ConnectTimeout": "15",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ControlMaster": "auto",  # the doctor, and a second look at a machine, use the connection there is
    "ControlPersist": "no",
}
NOT_INSTALLED = 69
"""Exit code of the far side where Shoal or torch is missing."""
PROBE = (
    "import shoal,sys;from importlib.metadata import version;print(sys.executable,version('shoal'),version('torch'))"
)
"""Prints interpreter and versions; finds torch without importing it."""


class SshEngine(LaunchEngine):
    """One connection for each machine."""

    name = "ssh"

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        if not options.where:
            raise UsageError("--on ssh names no machine; write --on ssh:hostA,hostB=2, or ssh:@FILE with one on a line")
        if options.nodes is not None:
            raise UsageError(f"--on ssh:{options.where} says how many machines; drop --nodes {options.nodes}")
        self._list = MachineList(options.where, options.workers, f"--on ssh:{options.where}")

    def machines(self) -> list[EngineMachine]:
        return self._list.read()

    def address(self) -> tuple[str, int]:
        """Of the way to the first machine, as ssh reaches it."""
        found = self.machines()
        if not found or os.environ.get(ADDRESS_VARIABLE):
            return super().address()
        return towards(*self._reach(found[0].name)), 0

    def _reach(self, host: str) -> tuple[str, int]:
        """Address and port that ssh's own configuration gives for a name."""
        from shoal.launch.address import parse

        words = (line.split(" ", 1) for line in run_tool([*ssh_command(), "-G", host], "--on ssh").splitlines())
        known = {pair[0]: pair[1] for pair in words if len(pair) == 2}
        return parse(f"{known.get('hostname', host)}:{known.get('port', '22')}", "--on ssh")

    def start(self, machine: EngineMachine, order: JoinOrder) -> "subprocess.Popen[bytes]":
        words = order.words(machine, "-", f"runs/{order.run}/machines/{machine.name}")
        return open_relay([*ssh_command(), "-T", machine.name, far_side(words)], order.secret)

    def findings(self) -> list[DoctorFinding]:
        return [finding for machine in self.machines() for finding in look_at(machine.name)]


def ssh_command() -> list[str]:
    words = shlex.split(os.environ.get(COMMAND_VARIABLE, "ssh"))
    # %C is a hash of host, port and user: short enough for a socket's path.
    control = f"ControlPath={open_private()}/ssh-%C"
    return [*words, *(word for pair in OPTIONS.items() for word in ("-o", "=".join(pair))), "-o", control]


def far_side(words: list[str]) -> str:
    """What the far side's shell runs: the first interpreter that has Shoal and torch, in this folder if it is there."""
    pythons = " ".join(shlex.quote(python) for python in dict.fromkeys((sys.executable, "python3", "python")))
    place, probe, join = shlex.quote(str(Path.cwd())), shlex.quote(PROBE), shlex.join(words)
    lacks = (
        "no python here has shoal and torch; install them: pip install shoal (the same versions as where the run began)"
    )
    return (
        # One line of POSIX sh, because the user's shell there may be any.
        f"cd {place} 2>/dev/null; for p in {pythons}; do "
        f'if command -v "$p" >/dev/null 2>&1 && "$p" -c {probe} </dev/null >/dev/null 2>&1; then '
        f'exec "$p" -m shoal {join}; fi; done; echo {shlex.quote(f"shoal: {lacks}")} >&2; exit {NOT_INSTALLED}'
    )


def look_at(host: str) -> list[DoctorFinding]:
    """Whether a machine answers, and what is installed there."""
    from importlib.metadata import version

    from shoal.membership.invitation import find_version_mismatch

    pythons = " ".join(shlex.quote(python) for python in dict.fromkeys((sys.executable, "python3", "python")))
    script = f'for p in {pythons}; do "$p" -c {shlex.quote(PROBE)} 2>/dev/null && exit 0; done; exit {NOT_INSTALLED}'
    try:
        done = subprocess.run(
            [*ssh_command(), "-T", host, script], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [DoctorFinding(f"ssh {host}", str(error), False, "install the OpenSSH client, or name another host")]
    if done.returncode == NOT_INSTALLED:
        return [DoctorFinding(f"ssh {host}", "no python there has shoal and torch", False, "pip install shoal there")]
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [DoctorFinding(f"ssh {host}", said, False, f"make 'ssh {host}' work without a password")]
    python, *found = done.stdout.split()
    there = dict(zip(("shoal", "torch"), found, strict=True))
    differs = find_version_mismatch({name: version(name) for name in there}, there)
    text = f"shoal {there['shoal']}, torch {there['torch']} in {python}"
    return [DoctorFinding(f"ssh {host}", differs or text, not differs, "install the same versions there")]
