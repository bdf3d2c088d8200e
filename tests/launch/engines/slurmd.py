"""A real Slurm of several nodes on one machine: munged, slurmctld, and a slurmd for each node."""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path

from sshd import free_port

NEEDS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")


def missing() -> str:
    """What this machine lacks; empty: nothing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    lacks = [name for name in NEEDS if shutil.which(name, path=path) is None]
    return ", ".join(lacks) or ("" if os.getuid() == 0 else "root")


class SlurmCluster:
    """`environment` has what the commands of Slurm need to find it."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder, host = folder, platform.node()
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        socket = self._start_munge()
        lines = [
            "ClusterName=shoal",
            f"SlurmctldHost={host}(127.0.0.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={socket}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            f"SlurmctldPort={free_port()}",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "SlurmdTimeout=20",
            "KillWait=5",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2",
        ]
        where = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2"
        lines += [f"NodeName={node} {where} Port={free_port()}" for node in self.nodes]
        lines.append("PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "state").mkdir()
        self._spawn("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        self.wait_idle()

    def _start_munge(self) -> Path:
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        words = ["--foreground", "--force", f"--socket={place}/socket", f"--key-file={key}"]
        words += [f"--pid-file={place}/pid", f"--log-file={place}/log", f"--seed-file={place}/seed"]
        self._spawn("munged", "munged", *words)
        self._wait(lambda: (place / "socket").exists(), "munged")
        return place / "socket"

    def _spawn(self, name: str, *words: str) -> None:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        with (self.folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                words,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **self.environment, "PATH": path},
            )

    def _wait(self, what: object, text: str, seconds: float = 60.0) -> None:
        limit = time.monotonic() + seconds
        while not what():  # type: ignore[operator]
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.[lo][ou][gt]"))
            assert time.monotonic() < limit, f"{text} is not there within {seconds:.0f} s:\n{logs}"
            time.sleep(0.1)

    def start_node(self, node: str) -> None:
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._spawn(node, "slurmd", "-D", "-N", node)

    def tool(self, *words: str) -> str:
        env = {**os.environ, **self.environment}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout

    def wait_idle(self) -> None:
        def idle() -> bool:
            return self.tool("sinfo", "-h", "-N", "-o", "%T").split().count("idle") == len(self.nodes)

        self._wait(idle, "an idle cluster")

    def kill_node(self, node: str) -> None:
        """Its slurmd, its step daemons and what they run; and the controller notices."""
        slurmd = self._processes.pop(node)
        slurmd.kill()
        slurmd.wait()
        mark = f"/machines/{node}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ProcessLookupError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
                if mark in words and b"srun\0" not in words:
                    os.kill(int(entry.name), signal.SIGKILL)
        self.tool("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")

    def restore_node(self, node: str) -> None:
        self.start_node(node)
        self.tool("scontrol", "update", f"nodename={node}", "state=resume")

    def jobs(self) -> list[str]:
        return self.tool("squeue", "-h", "-o", "%i %T").splitlines()

    def close(self) -> None:
        self.tool("scancel", "--full", "--user=root")
        for name in reversed(list(self._processes)):
            process = self._processes[name]
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
