"""`shoal probe`: measure the machines and the network, and write `cluster.toml`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.groups.cluster_file import ClusterMeasurement


def probe(
    lab: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Measure the hosts of a lab instead of real machines.")
    ] = None,
    out: Annotated[str, typer.Option(help="The file to write.")] = "cluster.toml",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure round trip and rate between every two workers, and how fast each computes.

    Of real machines: start it on all of them with torchrun, `torchrun … -m shoal probe`.
    """
    from shoal.cli.errors import interruptible, usage_errors

    with usage_errors(), interruptible():
        cluster = of_lab(lab) if lab is not None else of_machines()
        if cluster is not None:
            tell(cluster, Path(out), json)


def of_lab(spec: str) -> "ClusterMeasurement":
    """One measuring process on every host of the lab."""
    import tempfile
    from contextlib import ExitStack

    import msgspec

    from shoal.cli.run_checks import check_lab
    from shoal.groups.cluster_file import ClusterMeasurement
    from shoal.groups.probe import measure_on_host
    from shoal.lab.inside import inside
    from shoal.lab.lab import NetworkLab

    wanted = check_lab(spec, None)
    # Pairs of hosts are measured, so the time grows with the square of their number.
    seconds = 30.0 + 5.0 * wanted.size**2
    with tempfile.TemporaryDirectory() as folder, NetworkLab(wanted) as lab, ExitStack() as hosts:
        store = str(Path(folder, "store"))
        children = [
            hosts.enter_context(inside(lab, host.rank, measure_on_host, store, host.rank, wanted.size, host.address))
            for host in lab.hosts
        ]
        # Worker 0 has gathered what all have measured.
        return msgspec.convert(children[0].hear(seconds), ClusterMeasurement)


def of_machines() -> "ClusterMeasurement | None":
    """This worker of torchrun's, or this machine alone; None on all but worker 0."""
    from shoal.groups.base import SingleWorkerGroup
    from shoal.groups.probe import own_address, probe
    from shoal.launch import torchrun

    group = torchrun.join_group() if torchrun.present() else SingleWorkerGroup()
    cluster = probe(group, own_address())
    group.close()
    return cluster if group.rank == 0 else None


def tell(cluster: "ClusterMeasurement", out: Path, json: bool) -> None:
    """Write the file, and show its content."""
    import msgspec

    from shoal.core.errors import UsageError
    from shoal.groups.cluster_file import as_toml
    from shoal.watch.console import open_console
    from shoal.watch.table import plain_table

    try:
        out.write_text(as_toml(cluster))
    except OSError as error:
        raise UsageError(f"cannot write {str(out)!r}: {error.strerror}; choose another file with --out") from None
    if json:
        typer.echo(msgspec.json.encode(cluster).decode())
        return
    speeds = plain_table("worker", "host", "address", "threads", "GFLOP/s")
    for worker in cluster.workers:
        speeds.add_row(str(worker.rank), worker.host, worker.address, str(worker.threads), f"{worker.gflops:.1f}")
    links = plain_table("from", "to", "round trip ms", "Mbit/s")
    for link in cluster.links:
        links.add_row(str(link.sender), str(link.receiver), f"{link.rtt_ms:.2f}", f"{link.rate_mbit:.1f}")
    open_console().print(speeds, links)
    typer.echo(f"shoal: written to {out}", err=True)
