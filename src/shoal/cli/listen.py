"""`shoal run --listen`: which machines may join, and the description of the run that they get."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.hosts.arena import SharedArena
    from shoal.launch.job import LaunchJob, PlacementMaker
    from shoal.launch.listen import ListenAddress
    from shoal.launch.placement import WorkerPlacement
    from shoal.membership.invitation import RunBrief
    from shoal.plan.plan import Plan

MOST_REMOTE_WORKERS = 64
"""Workers of other machines in all, unless the command says otherwise."""


@dataclass(frozen=True)
class ListenOptions:
    """The options of the command."""

    listen: str | None = None
    key: str | None = None
    allow: tuple[str, ...] = ()
    most: int = MOST_REMOTE_WORKERS


NOT_LISTENING = ListenOptions()


def check_listen(
    wanted: ListenOptions, plan: "Plan", script: str, arguments: tuple[str, ...], lab: bool
) -> "ListenAddress | None":
    """Return where to listen, or None; raise UsageError for options that contradict each other."""
    from shoal.launch.address import check_own, parse
    from shoal.launch.listen import ListenAddress
    from shoal.membership.allow_list import AllowList, allow_file
    from shoal.transport.keys import CurveKeyPair

    if wanted.listen is None:
        for given, option in ((wanted.key, "--key"), (wanted.allow, "--allow")):
            if given:
                raise UsageError(f"{option} says who may join; say where with --listen HOST:PORT")
        return None
    host, port = parse(wanted.listen, "--listen", least=0)
    if wanted.key is None:
        raise UsageError(
            f"--listen {wanted.listen} can be reached by others and there is no key; make one with "
            "shoal keys new FILE, then give --key FILE"
        )
    check_plan(plan, lab)
    check_script(Path(script), arguments)
    file = Path(wanted.key)
    keys = CurveKeyPair.read(file)
    allow_list = AllowList(allowed(wanted.allow), allow_file(file.absolute()))
    # The run's own pair is no invitation: its holder could pose as the run.
    if keys.public in allow_list:
        raise UsageError(
            f"--allow {keys.public.decode()} is the run's own key, which admits no machine; make an "
            f"invitation with shoal keys invite {wanted.key} --out FILE"
        )
    # A run can only listen at an address of this machine.
    check_own(host, port, "--listen")
    return ListenAddress(host, port, keys, wanted.key, allow_list, wanted.most)


def check_plan(plan: "Plan", lab: bool) -> None:
    """Raise UsageError for an address where no machine could join."""
    import os

    from shoal.groups.links import trusted
    from shoal.plan.terms import AllReduceTerm, DatagramsTerm, LocalTerm, ServerTerm, SharedTerm

    if lab:
        raise UsageError("--listen and --lab: the hosts of a lab cannot be reached from outside; drop one of the two")
    if trusted() or os.environ.get("SHOAL_ENGINE", "auto") != "auto":
        raise UsageError("--listen needs links under keys; drop --trusted, SHOAL_TRUSTED and SHOAL_ENGINE")
    if plan.order.by == "needed":
        raise UsageError(
            f"--listen with '{plan.order}': who joins enters between two steps, and these overlap; drop one"
        )
    hosts_have_copies = isinstance(plan.exchange, SharedTerm) and isinstance(plan.pace, LocalTerm)
    if not (hosts_have_copies or isinstance(plan.exchange, AllReduceTerm | ServerTerm | DatagramsTerm)):
        raise UsageError(f"--listen with {plan}: who joins would exchange nothing; use allreduce or server")


def check_script(script: Path, arguments: tuple[str, ...]) -> None:
    """Raise UsageError if it is too large to send to other machines."""
    from shoal.membership.invitation import LARGEST_ARGUMENTS, LARGEST_SCRIPT

    if (size := script.stat().st_size) > LARGEST_SCRIPT:
        raise UsageError(f"{script} has {size} bytes; with --listen a script may have {LARGEST_SCRIPT}")
    if (size := sum(len(word.encode()) for word in arguments)) > LARGEST_ARGUMENTS:
        raise UsageError(f"the script's arguments have {size} bytes; with --listen they may have {LARGEST_ARGUMENTS}")


def allowed(words: tuple[str, ...]) -> dict[bytes, int]:
    """`PUBLIC` or `PUBLIC=K`: the key of another machine, and how many workers it may bring."""
    from shoal.membership.allow_list import parse_allowed

    try:
        return dict(parse_allowed(word) for word in words)
    except UsageError as error:
        raise UsageError(f"--allow {error}") from None


def opened(listen: "ListenAddress") -> "PlacementMaker":
    """Makes the place of a run that listens."""

    def make(job: "LaunchJob", arena: "SharedArena") -> "WorkerPlacement":
        from shoal.launch.join_request import versions
        from shoal.launch.listen import ListenPlacement
        from shoal.membership.grants import JoinPolicy

        welcome = JoinPolicy(brief(job), versions(), listen.allowed, job.capacity, listen.most)
        return ListenPlacement(listen, welcome, arena, job.run, job.capacity)

    return make


def brief(job: "LaunchJob") -> "RunBrief":
    """Return the description that joining machines get."""
    import os
    import re

    from shoal.core.goal import UNTIL_VARIABLE
    from shoal.membership.invitation import RunBrief
    from shoal.plan.load import load
    from shoal.plan.registry import packages_of

    # The name becomes a file on other machines, so it must not be a path.
    name = job.script.name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", job.script.name) else "script.py"
    return RunBrief(
        run=job.run,
        name=name,
        script=job.script.read_bytes(),
        arguments=tuple(job.arguments),
        plan=job.plan,
        seed=job.seed,
        checkpoint=job.checkpoint,
        until=os.environ.get(UNTIL_VARIABLE, ""),
        codecs=tuple(packages_of(load(job.plan).terms).items()),
    )
