"""Cleans up after a lab: a helper process outlives the lab's, and removes what it made, however it ended.

    lab's process ──"net NAME", "dir PATH"──> guard (link.c) ──> reaper (sh)

The guard copies the list until an empty line or the end of the lab's process, SIGKILL included; then the reaper kills
what still runs in the namespaces and removes them, and removes the (control group) folders, once their processes have
ended: what was killed under a small quota ends slowly, so the quota is lifted, and ten seconds are given.
"""

import subprocess
from pathlib import Path

from shoal.core.errors import ShoalError

# Without an empty line the lab's process died, perhaps while `ip netns add` was at work: so it looks a second time.
SCRIPT = """
"$1" guard "$2" | {
    nets= dirs= ended=
    while read -r kind name; do
        case $kind in net) nets="$nets $name" ;; dir) dirs="$dirs $name" ;; *) ended=1; break ;; esac
    done
    sweep() {
        for net in $nets; do
            for try in 1 2 3 4 5 6 7 8 9 10; do
                pids=$(ip netns pids "$net" 2>/dev/null)
                [ -n "$pids" ] || break
                kill -9 $pids 2>/dev/null
                [ $try = 1 ] || sleep 0.1
            done
            ip netns delete "$net" 2>/dev/null
        done
        for dir in $dirs; do
            try=0
            while rmdir "$dir" 2>/dev/null; [ -d "$dir" ] && [ $try -lt 200 ]; do
                { echo -1 >"$dir/cpu.cfs_quota_us"; echo max >"$dir/cpu.max"; } 2>/dev/null
                kill -9 $(cat "$dir/cgroup.procs") 2>/dev/null
                sleep 0.05
                try=$((try + 1))
            done
        done
    }
    sweep
    [ -n "$ended" ] || { sleep 0.3; sweep; }
}
"""


REMOVAL_SECONDS = 120.0
"""Far more than the removal of 250 hosts takes."""


class LabReaper:
    """Every resource is registered with it before it is made."""

    def __init__(self, program: Path, parent: int) -> None:
        # A session of its own, so that a terminal's interrupt does not end it early.
        self._process = subprocess.Popen(
            ["sh", "-c", SCRIPT, "shoal-lab-reaper", str(program), str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def namespace(self, name: str) -> None:
        """A network namespace is about to be made."""
        self._tell(f"net {name}\n")

    def folder(self, path: Path) -> None:
        """A control group is about to be made."""
        self._tell(f"dir {path}\n")

    def close(self) -> None:
        """Everything goes now; returns when it is gone."""
        try:
            self._tell("\n")
        finally:
            self._hang_up()
            self._process.wait(REMOVAL_SECONDS)

    def abandon(self) -> None:
        """In a forked child: close the pipe; the process is the parent's to wait for."""
        self._hang_up()
        # Popen must not wait, at exit, for a process that is not this one's child.
        self._process.returncode = 0

    def _hang_up(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()

    def _tell(self, line: str) -> None:
        try:
            if self._process.stdin:
                self._process.stdin.write(line.encode())
        except BrokenPipeError:
            raise ShoalError("the lab's reaper was killed; 'ip netns list' shows what is left of the lab") from None
