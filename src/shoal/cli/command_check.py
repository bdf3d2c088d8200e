"""What a command must be to make sense, whatever starts it: a script, a seed, a plan that fits the workers."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.options import AUTO, PLAN, RunOptions

if TYPE_CHECKING:
    from shoal.plan.plan import Plan


def check_command(options: RunOptions, workers: int) -> "Plan":
    """The plan, if the command makes sense; UsageError if not."""
    from shoal.core.errors import UsageError
    from shoal.hosts.status_board import MOST_WORKERS
    from shoal.plan.load import load
    from shoal.plan.rules import check
    from shoal.train.checkpoint.interval import CheckpointInterval

    if not Path(options.script or "").is_file():
        raise UsageError(f"no script {options.script!r} here; give the path of a Python file")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed {options.seed} is not a seed; give a whole number, 0 or more")
    if workers > MOST_WORKERS:
        raise UsageError(f"--workers {workers} is too many for one host; give at most {MOST_WORKERS}")
    CheckpointInterval.parse(options.checkpoint or AUTO)
    chosen = load(options.plan or PLAN)
    if options.share is not None:
        chosen = with_share(chosen, options.share)
    for warning in check(chosen, workers):
        typer.echo(f"shoal: note: {warning}", err=True)
    _check_one_host(options, chosen)
    return chosen


def _check_one_host(options: RunOptions, plan: "Plan") -> None:
    """UsageError for a plan of one host's memory where workers are on several."""
    from shoal.core.errors import UsageError
    from shoal.plan.terms import EveryTerm, SharedTerm

    elsewhere = {"--lab": options.lab, "--listen": options.wanted.listen, "--on": options.engine}
    option = next((name for name, value in elsewhere.items() if value is not None), None)
    if isinstance(plan.exchange, SharedTerm) and plan.pace == EveryTerm() and option is not None:
        raise UsageError(
            f"{option} with '{plan.exchange}': its workers share one host's memory, and these are on several hosts; "
            f"drop {option}, or write shared, local(16) for a copy on each host"
        )


def with_share(plan: "Plan", share: str) -> "Plan":
    """The plan with what --share says; UsageError if the plan says something else."""
    import msgspec

    from shoal.core.errors import UsageError
    from shoal.plan.balance import EVEN, BalanceTerm

    if plan.balance != EVEN:
        raise UsageError(f"--share {share} and '{plan.balance}' in the plan both say who computes how much; keep one")
    try:
        return msgspec.structs.replace(plan, balance=BalanceTerm(share.replace(",", ":")))
    except UsageError:
        raise UsageError(
            f"--share {share} is not a share for each worker; write --share 2,1,1 or --share auto"
        ) from None
