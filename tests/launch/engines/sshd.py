"""Two machines that are reached by ssh: two sshd of this one, on ports of loopback, with keys made for the test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class SshMachines:
    """Names, each with an sshd of its own; `command` is what $SHOAL_SSH has to be."""

    def __init__(self, folder: Path, *names: str) -> None:
        folder.mkdir(mode=0o700)
        self.folder, self.ports = folder, {name: free_port() for name in names}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True)
        lines = ["Host *", f"IdentityFile {folder}/user", "StrictHostKeyChecking no", "LogLevel ERROR"]
        lines += ["UserKnownHostsFile /dev/null", "IdentitiesOnly yes"]
        for name, port in self.ports.items():
            lines += [f"Host {name}", "HostName 127.0.0.1", f"Port {port}"]
        (folder / "config").write_text("\n".join(lines) + "\n")
        self.command = f"ssh -F {folder}/config"
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        folder, port = self.folder, self.ports[name]
        settings = {
            "Port": port,
            "ListenAddress": "127.0.0.1",
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "UsePAM": "no",
        }
        file = folder / f"sshd-{name}"
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        words = [SSHD, "-D", "-e", "-f", str(file)]
        with (folder / f"log-{name}").open("ab") as log:
            self._servers[name] = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        limit = time.monotonic() + 20.0
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                assert time.monotonic() < limit, (folder / f"log-{name}").read_text()
                time.sleep(0.05)
            else:
                return

    def kill(self, name: str, run: str) -> None:
        """The machine is gone: its sshd, the sessions, and all that they have started for a run."""
        server = self._servers.pop(name)
        marks = (f"/machines/{name}".encode(), f"{self.folder}/sshd-{name}".encode())
        doomed = {server.pid}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
                if run.encode() in words and marks[0] in words and b"ssh\0" not in words:
                    doomed.add(int(entry.name))
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.wait()

    def close(self) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()
