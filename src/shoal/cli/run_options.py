"""The options of `shoal run`, in the groups in which `shoal run --help` shows them."""

from typing import Annotated

import typer

TRAINING = "Training"
LOSSES = "Losses and checkpoints"
NETWORK = "Network"
MACHINES = "Other machines"
OUTPUT = "Output"

WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        "-w",
        metavar="N|auto",
        help="Worker processes; auto adds workers until throughput stops rising; else 1, or one for each host of the "
        "lab.",
        rich_help_panel=TRAINING,
    ),
]
PlanOption = Annotated[
    str | None,
    typer.Option(help="A plan, a named plan, or a TOML file; else 'allreduce, every(1)'.", rich_help_panel=TRAINING),
]
SeedOption = Annotated[
    int | None, typer.Option(help="Of the sample order and all random numbers; else 0.", rich_help_panel=TRAINING)
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        metavar="2,1,1", help="How much of every batch each worker computes; or auto.", rich_help_panel=TRAINING
    ),
]
NameOption = Annotated[str | None, typer.Option(help="The run's id; made up if left out.", rich_help_panel=TRAINING)]
RunsOption = Annotated[
    str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.", rich_help_panel=TRAINING)
]

CheckpointOption = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="auto (the default), off, a time (30s) or 500steps.", rich_help_panel=LOSSES),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Id or folder of a run to go on with; its record has the rest.", rich_help_panel=LOSSES
    ),
]
RestartsOption = Annotated[
    int, typer.Option(min=0, help="How often a lost worker is started again.", rich_help_panel=LOSSES)
]
MinWorkersOption = Annotated[int, typer.Option(min=1, help="Fewer living workers end the run.", rich_help_panel=LOSSES)]
SpareOption = Annotated[
    int,
    typer.Option(min=0, help="Keep memory for this number of workers of shoal scale RUN +K.", rich_help_panel=LOSSES),
]

LabOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC", help="Emulated hosts: '4 hosts, 100mbit, 20ms' or a TOML file.", rich_help_panel=NETWORK
    ),
]
TrustedOption = Annotated[
    bool,
    typer.Option(
        "--trusted", help="Between hosts use gloo: no keys, for a network that is yours alone.", rich_help_panel=NETWORK
    ),
]
BandwidthOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="The most a worker sends over links: 50mbit; else no limit.", rich_help_panel=NETWORK
    ),
]

ListenOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Let other machines join: they type shoal join HOST:PORT.", rich_help_panel=MACHINES
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Of --listen: the run's own pair, by shoal keys new.", rich_help_panel=MACHINES),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PUBLIC[=K]", help="Another machine's own key, for K workers (1).", rich_help_panel=MACHINES),
]
MaxWorkersOption = Annotated[
    int, typer.Option(min=1, help="Limit of workers of other machines, in all.", rich_help_panel=MACHINES)
]
OnOption = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="Machines by ssh:A,B=2, slurm, ray, k8s:IMAGE, mpi or local; see docs.",
        rich_help_panel=MACHINES,
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(min=1, help="Of --on: machines in all; each has --workers workers.", rich_help_panel=MACHINES),
]
TimeOption = Annotated[
    str, typer.Option(metavar="TIME", help="Of --on slurm: the job's time limit, as in 2h.", rich_help_panel=MACHINES)
]
PartitionOption = Annotated[
    str, typer.Option(metavar="NAME", help="Of --on slurm: where to queue.", rich_help_panel=MACHINES)
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Of --on slurm and k8s: print what would be submitted.", rich_help_panel=MACHINES),
]

WatchOption = Annotated[
    bool, typer.Option("--watch", help="Serve a page that shows the run; see shoal watch.", rich_help_panel=OUTPUT)
]
ExportOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND[=URI]", help="Hand the run to mlflow or otel too.", rich_help_panel=OUTPUT),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Last line of output: one JSON object.", rich_help_panel=OUTPUT)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only errors (and the JSON object).", rich_help_panel=OUTPUT)
]
