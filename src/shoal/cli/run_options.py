"""The options of `shoal run`, in the groups in which `shoal run --help` shows them."""

from dataclasses import dataclass
from typing import Annotated

import typer

from shoal.cli.listen import MOST_REMOTE_WORKERS

TRAINING = "Training"
LOSSES = "Losses and checkpoints"
NETWORK = "Network"
MACHINES = "Other machines"
OUTPUT = "Output"


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained, by how many workers, and under which name."""

    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            "-w",
            metavar="N|auto",
            help="Worker processes; auto adds workers until throughput stops rising; else 1, or one for each host of "
            "the lab.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            help="A plan, a named plan, or a TOML file; else 'allreduce, every(1)'.", rich_help_panel=TRAINING
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="The run's id; made up if left out.", rich_help_panel=TRAINING)] = (
        None
    )
    runs: Annotated[
        str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.", rich_help_panel=TRAINING)
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Of the sample order and all random numbers; else 0.", rich_help_panel=TRAINING)
    ] = None
    data_servers: Annotated[
        str | None,
        typer.Option(
            "--data-servers",
            metavar="N|HOST:PORT=KEY,…",
            help="Processes that prepare batches for the workers; or where shoal data serves, with an invitation.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    share: Annotated[
        str | None,
        typer.Option(
            metavar="2,1,1", help="How much of every batch each worker computes; or auto.", rich_help_panel=TRAINING
        ),
    ] = None


@dataclass(frozen=True)
class NetworkOptions:
    """The network between workers."""

    lab: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC", help="Emulated hosts: '4 hosts, 100mbit, 20ms' or a TOML file.", rich_help_panel=NETWORK
        ),
    ] = None
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="Between hosts use gloo: no keys, for a network that is yours alone.",
            rich_help_panel=NETWORK,
        ),
    ] = False
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="The most a worker sends over links: 50mbit; else no limit.", rich_help_panel=NETWORK
        ),
    ] = None
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="shortest[:STEPS]",
            help="Of your runs on a host that share its link, the one with the least left sends first.",
            rich_help_panel=NETWORK,
        ),
    ] = None


@dataclass(frozen=True)
class LossOptions:
    """What happens when workers are lost, and where a run is resumed."""

    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="auto (the default), off, a time (30s) or 500steps.", rich_help_panel=LOSSES),
    ] = None
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Id or folder of a run to go on with; its record has the rest.", rich_help_panel=LOSSES
        ),
    ] = None
    restarts: Annotated[
        int, typer.Option(min=0, help="How often a lost worker is started again.", rich_help_panel=LOSSES)
    ] = 3
    min_workers: Annotated[
        int, typer.Option(min=1, help="Fewer living workers end the run.", rich_help_panel=LOSSES)
    ] = 1
    spare: Annotated[
        int,
        typer.Option(
            min=0, help="Keep memory for this number of workers of shoal scale RUN +K.", rich_help_panel=LOSSES
        ),
    ] = 0


@dataclass(frozen=True)
class MachineOptions:
    """Machines beside this one."""

    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Let other machines join: they type shoal join HOST:PORT.",
            rich_help_panel=MACHINES,
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Of --listen: the run's own pair, by shoal keys new.", rich_help_panel=MACHINES
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PUBLIC[=K]", help="Another machine's own key, for K workers (1).", rich_help_panel=MACHINES
        ),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Machines by ssh:A,B=2, slurm, ray, k8s:IMAGE, mpi or local; see docs.",
            rich_help_panel=MACHINES,
        ),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Of --on: machines in all; each has --workers workers.", rich_help_panel=MACHINES),
    ] = None
    time: Annotated[
        str,
        typer.Option(metavar="TIME", help="Of --on slurm: the job's time limit, as in 2h.", rich_help_panel=MACHINES),
    ] = ""
    partition: Annotated[
        str, typer.Option(metavar="NAME", help="Of --on slurm: where to queue.", rich_help_panel=MACHINES)
    ] = ""
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Of --on slurm and k8s: print what would be submitted.", rich_help_panel=MACHINES
        ),
    ] = False
    max_workers: Annotated[
        int, typer.Option(min=1, help="Limit of workers of other machines, in all.", rich_help_panel=MACHINES)
    ] = MOST_REMOTE_WORKERS


@dataclass(frozen=True)
class OutputOptions:
    """What is shown of the run."""

    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page that shows the run; see shoal watch.", rich_help_panel=OUTPUT)
    ] = False
    export: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND[=URI]", help="Hand the run to mlflow or otel too.", rich_help_panel=OUTPUT),
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="Last line of output: one JSON object.", rich_help_panel=OUTPUT)
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only errors (and the JSON object).", rich_help_panel=OUTPUT)
    ] = False
