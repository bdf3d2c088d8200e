"""What `shoal run` checks about workers, hosts and losses before anything starts; each raises UsageError."""

import os
from typing import TYPE_CHECKING

from shoal.cli.options import RunOptions

if TYPE_CHECKING:
    from shoal.lab.spec import LabSpec
    from shoal.launch.policy import LossPolicy
    from shoal.plan.plan import Plan


def with_room(options: RunOptions) -> RunOptions:
    """--workers auto: one worker, and memory for as many as --spare says, or as there are cores."""
    from dataclasses import replace

    from shoal.core.errors import UsageError
    from shoal.launch.policy import own_cores

    fixed = {"--lab": options.lab, "--on": options.engine, "--listen": options.wanted.listen, "--share": options.share}
    if option := next((name for name, value in fixed.items() if value is not None), None):
        raise UsageError(
            f"--workers auto with {option}: it adds workers of this host alone, to equal shares; drop {option}, or "
            "write --workers 2"
        )
    return replace(options, workers=1, spare=options.spare or own_cores() - 1)


def count_workers(options: RunOptions, usual: int) -> int:
    """As many as are asked for, by option or by the groups of a plan file; else `usual`."""
    from shoal.core.errors import UsageError
    from shoal.plan import load

    grouped = load.count_workers(options.plan or "")
    if grouped is not None and options.workers not in (None, grouped):
        raise UsageError(f"--workers {options.workers} and groups of {grouped} workers in {options.plan}; keep one")
    asked = options.workers if grouped is None else grouped
    return usual if asked is None else asked


def check_lab(lab: str, workers: int | None) -> "LabSpec":
    """The lab, if it can be had here and has a host for every worker."""
    from shoal.core.errors import UsageError
    from shoal.lab.load import load
    from shoal.lab.needs import require

    spec = load(lab)
    require()
    if workers is not None and workers > spec.size:
        raise UsageError(f"--workers {workers} is more than the lab's {spec.size} hosts; every worker has its own")
    return spec


def check_servers(options: RunOptions, plan: "Plan") -> None:
    """UsageError where the plan has servers that not all workers could reach."""
    from shoal.core.errors import UsageError
    from shoal.groups.links import trusted

    servers = plan.servers
    if servers is None:
        return
    if options.lab is not None and trusted():
        raise UsageError(f"--trusted with '{servers}': servers are reached over links under keys; drop --trusted")
    elsewhere = {"--lab": options.lab, "--listen": options.wanted.listen, "--on": options.engine}
    elsewhere_option = next((name for name, value in elsewhere.items() if value), None)
    if servers.shards == "auto" and elsewhere_option:
        raise UsageError(
            f"{elsewhere_option} with '{servers}': servers come and go on one host only, because workers of several "
            "know them by keys that are handed out when the run begins; write server(2)"
        )
    if servers.replicas > 1 and elsewhere_option == "--on":
        raise UsageError(
            f"--on with '{servers}': replicas of servers work on one host, under --listen and under --lab; elsewhere a "
            "killed server takes the run back to its checkpoint; write replicas=1"
        )
    # The variable chooses how workers sum, and here servers do it.
    if os.environ.get("SHOAL_ENGINE", "auto") != "auto":
        raise UsageError(f"SHOAL_ENGINE={os.environ['SHOAL_ENGINE']} with '{servers}': unset it, or write allreduce")


def survival(options: RunOptions, plan: "Plan", workers: int) -> "LossPolicy | None":
    """Return which losses the run tolerates: none if no worker could go on, or if the user needs all of them."""
    from shoal.core.errors import UsageError
    from shoal.groups.links import trusted
    from shoal.launch.policy import LossPolicy
    from shoal.plan.terms import AloneTerm

    restarts, least = options.survive
    if least > workers:
        raise UsageError(f"--min-workers {least} is more than --workers {workers}; give at most {workers}")
    # Groups of gloo and NCCL cannot be used after a failed collective.
    ours = os.environ.get("SHOAL_ENGINE", "auto") != "collective" and not (options.lab and trusted())
    ours = ours and not (options.lab and plan.order.by == "needed")  # its steps stay open while the next one begins
    if options.wanted.listen is not None or options.engine is not None:
        return LossPolicy(restarts, least)
    if options.lab and plan.servers is not None and workers > 1:
        return LossPolicy(restarts, least)  # the coordinator's views tell servers between hosts who may connect
    # No loss can be survived: by a single worker, or where the user wants all workers or none.
    everybody = workers + options.spare == 1 or (restarts == 0 and least == workers and not options.spare)
    if everybody or not ours or isinstance(plan.exchange, AloneTerm):
        return None
    return LossPolicy(restarts, least)


def check_spare(
    options: RunOptions, plan: "Plan", workers: int, lab: "LabSpec | None", survive: "LossPolicy | None"
) -> int:
    """Slots for workers that are added later: those the command asks for, and the idle hosts of a lab."""
    from shoal.core.errors import UsageError
    from shoal.hosts.status_board import MOST_WORKERS
    from shoal.plan.terms import AllReduceTerm

    asked = f"--spare {options.spare}"
    if options.spare and (lab is not None or options.engine is not None):
        raise UsageError(f"{asked} keeps memory on one host; drop --lab or --on, whose hosts are fixed")
    if options.spare and (survive is None or plan.servers is not None or not isinstance(plan.exchange, AllReduceTerm)):
        raise UsageError(f"{asked}: the members of this run cannot change; use an allreduce plan, without --trusted")
    if workers + options.spare > MOST_WORKERS:
        raise UsageError(f"{asked} with --workers {workers} is too many for one host; give {MOST_WORKERS} in all")
    # Idle hosts of a lab need no memory of this host's arena, so they are always there.
    return lab.size - workers if lab is not None and survive is not None else options.spare
