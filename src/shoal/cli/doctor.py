"""`shoal doctor`: what this machine, and an engine, lack for runs over several machines; a line for each thing.

Exit codes: 0 nothing is missing · 1 something is · 2 the command was wrong.
"""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.launch.engines.findings import DoctorFinding

EXIT_LACKS = 1


def doctor(
    on: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Also look at ssh:A,B, slurm, ray, k8s:IMAGE, mpi.")
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
) -> None:
    """Look for what is missing here: versions, address, ports, time to reach, shared folder, limits."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.core import record

    with usage_errors(), interruptible():
        root = record.runs_root(runs).absolute()
        found = look_here(root)
        if on is not None:
            found += look_at_engine(on, root)
        for finding in found:
            typer.echo(str(finding))
        if lacking := sum(not finding.good for finding in found):
            typer.echo(f"shoal: {lacking} of {len(found)} things are lacking", err=True)
            raise typer.Exit(EXIT_LACKS)


def look_here(root: "Path") -> "list[DoctorFinding]":
    return [*versions(), *network(), folder(root), *limits()]


def look_at_engine(on: str, root: "Path") -> "list[DoctorFinding]":
    from shoal.launch.engines.base import EngineOptions
    from shoal.launch.engines.table import make_engine, split_on

    name, where = split_on(on)
    return make_engine(name, EngineOptions(where, runs=root)).findings()


def versions() -> "list[DoctorFinding]":
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from shoal.launch.engines.findings import DoctorFinding

    found = [DoctorFinding("python", platform.python_version())]
    for name in ("shoal", "torch", "pyzmq", "numba"):
        try:
            # Asked of what is installed: importing torch would take seconds.
            found.append(DoctorFinding(name, version(name)))
        except PackageNotFoundError:
            found.append(DoctorFinding(name, "not installed", False, f"pip install {name}"))
    return found


def network() -> "list[DoctorFinding]":
    """The address others would use, whether a run can listen there, and how long a connection to it takes."""
    import socket
    import time

    from shoal.core.errors import UsageError
    from shoal.launch.engines.base import EngineOptions, LaunchEngine
    from shoal.launch.engines.findings import DoctorFinding

    names = ", ".join(name for _, name in socket.if_nameindex())
    found = [DoctorFinding("interfaces", names or "none", bool(names), "is the network up?")]
    try:
        host, _ = LaunchEngine(EngineOptions()).address()
    except UsageError as error:
        return [*found, DoctorFinding("address", str(error), False, "set SHOAL_ADDRESS, or give --listen HOST:PORT")]
    try:
        with socket.create_server((host, 0)) as server:
            began = time.perf_counter()
            # To its own server, so that a firewall or a wrong address shows before a run needs it.
            socket.create_connection(server.getsockname()[:2], timeout=5.0).close()
            took = (time.perf_counter() - began) * 1e3
    except OSError as error:
        return [
            *found,
            DoctorFinding("ports", f"cannot listen at {host}: {error.strerror}", False, "set SHOAL_ADDRESS"),
        ]
    loopback = host.startswith("127.")
    found.append(DoctorFinding("address", host, not loopback, "only this machine reaches it; set SHOAL_ADDRESS"))
    return [*found, DoctorFinding("ports", f"a run can listen at {host}; {took:.1f} ms to reach it")]


def folder(root: "Path") -> "DoctorFinding":
    """Check whether runs can be stored there, and whether other machines may see the folder."""
    import os
    import tempfile

    from shoal.launch.engines.findings import DoctorFinding

    # The nearest folder that exists: a run makes those below it.
    place = next(parent for parent in (root, *root.parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return DoctorFinding("folder of runs", f"{root}: {error.strerror}", False, "give another with --runs")
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize / 1e9
    kind = file_system(place)
    shared = "other machines see it" if kind in SHARED else "of this machine alone"
    return DoctorFinding("folder of runs", f"{root} on {kind}, {shared}, {free:.0f} GB free", free > 1.0, "make room")


SHARED = {"nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse.ceph", "beegfs", "cifs", "fuse.sshfs", "glusterfs", "9p"}


def file_system(place: "Path") -> str:
    """The kind of file system a folder is on."""
    from pathlib import Path

    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        inside = str(place.resolve()).startswith(where.rstrip("/") + "/") or str(place.resolve()) == where
        # The longest mount point that holds the folder; of two on one place the later hides the earlier.
        if inside and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def limits() -> "list[DoctorFinding]":
    import os
    import resource

    from shoal.launch.engines.findings import DoctorFinding

    # The hard limit, up to which a process may raise its own.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    memory = os.statvfs("/dev/shm")
    free = memory.f_bavail * memory.f_frsize / 1e6
    cores = len(os.sched_getaffinity(0))
    return [
        DoctorFinding("open files", f"{files} at most", files >= 1024 or files < 0, "raise ulimit -n to 4096"),
        DoctorFinding("shared memory", f"{free:.0f} MB free", free > 64, "give the container more: --shm-size=1g"),
        DoctorFinding("cores", str(cores)),
    ]
