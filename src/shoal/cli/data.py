"""`shoal data`: prepare batches on this machine for the runs of others.

Exit codes: 1 the script failed, or ended before it trained · 2 the command was wrong · 130 interrupted.
"""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.launch.data_seats import DataServerSeat


def data(
    where: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where to listen.", show_default=False)],
    script: Annotated[str, typer.Argument(help="The training script of the runs.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="This server's own pair, by shoal keys new.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the script's random numbers, as --seed of the runs.")] = 0,
) -> None:
    """Run SCRIPT until it would train, then prepare batches for shoal run --data-servers HOST:PORT=INVITATION."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.launch.worker import run_script

    with usage_errors(), interruptible():
        from pathlib import Path

        from shoal.core.errors import UsageError

        if not Path(script).is_file():
            raise UsageError(f"no script {script!r} here; give the file that the runs train")
        seat = find_seat(where, key)
        take_role(seat, seed)
        typer.echo(f"shoal: data server at {seat.address}, for those with an invitation of {key}", err=True)
        run_script(Path(script), list(arguments or ()))
        # Serving begins where training would and does not return: a script that gets here never came to it.
        raise UsageError(f"{script} ended before it trained; join a DataLoader and iterate it")


def find_seat(where: str, key: str | None) -> "DataServerSeat":
    """Where to listen, and to whom."""
    from pathlib import Path

    from shoal.core.errors import UsageError
    from shoal.launch.address import check_own, parse
    from shoal.launch.data_seats import DataServerSeat
    from shoal.membership.allow_list import AllowList, allow_file
    from shoal.membership.credentials import ServerCredentials
    from shoal.transport.keys import CurveKeyPair

    host, port = parse(where, "shoal data")
    if key is None:
        raise UsageError(
            f"shoal data {where} can be reached by others and there is no key; make one with shoal keys new FILE, then "
            "give --key FILE"
        )
    file = Path(key)
    pair, allowed = CurveKeyPair.read(file), AllowList({}, allow_file(file.absolute()))
    check_own(host, port, "shoal data")
    return DataServerSeat(0, f"tcp://{host}:{port}", ServerCredentials(pair, allowed, allowed))


def take_role(seat: "DataServerSeat", seed: int) -> None:
    """Let this process's script prepare batches."""
    from pathlib import Path

    import torch

    from shoal.groups.base import SingleWorkerGroup
    from shoal.launch.context import WorkerContext, inherit
    from shoal.plan.plan import Plan
    from shoal.train.data_role import DataRun

    torch.set_num_threads(1)

    def make(context: WorkerContext, plan: Plan) -> DataRun:
        return DataRun(context, plan, seat, 1)

    inherit(WorkerContext(SingleWorkerGroup(), "data", Path.cwd(), "", seed, begun=True, make=make))
