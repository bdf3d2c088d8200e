"""Shows the user what `shoal join` would execute on this machine, and asks before anything is started.

look ── shown: run, address, script, size, digest ── agreed? ── ask for ids ── the same run still?
"""

import sys
from typing import TYPE_CHECKING

import typer

from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.membership.credentials import ClientCredentials
    from shoal.membership.invitation import RunBrief

LONGEST_ARGUMENTS = 300
"""Letters of a script's arguments that are shown."""


def agree(address: str, key: "ClientCredentials", workers: int, yes: bool) -> "RunBrief":
    """What to run, with ids for its workers, once the user has seen what that is and agreed."""
    import msgspec

    from shoal.launch.join_request import ask_apart, question
    from shoal.plan.registry import check_packages

    shown = ask_apart(address, key, question(workers, look=True))
    check_packages(dict(shown.codecs))
    confirm(shown, address, key, yes)
    # Ids only now: asked for earlier, they would be taken while the user still reads.
    brief = ask_apart(address, key, question(workers))
    if msgspec.structs.replace(brief, members=(), founding=False) != shown:
        raise UsageError(f"{address} is another run by now than the one that was shown; look at it again")
    return brief


def confirm(brief: "RunBrief", address: str, key: "ClientCredentials", yes: bool) -> None:
    """Say what would be executed here, and ask once; UsageError: it is not to be."""
    what = described(brief, address, key)
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{what}; there is no terminal to ask at: give --yes to agree")
    typer.echo(f"shoal: {what}", err=True)
    if yes:
        return
    try:
        agreed = typer.confirm("shoal: execute it here?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise UsageError("not joined, and nothing was executed")


def described(brief: "RunBrief", address: str, key: "ClientCredentials") -> str:
    """One line: the run, where it is, and the script by name, size and digest. Nothing of it can write elsewhere."""
    import hashlib
    import shlex

    digest = hashlib.sha256(brief.script).hexdigest()
    words = shlex.join(brief.arguments)
    # Arguments of another's machine must not write elsewhere on this terminal.
    words = words if words.isprintable() else ascii(words)
    words = f"{words[:LONGEST_ARGUMENTS]}…" if len(words) > LONGEST_ARGUMENTS else words
    return (
        f"the run {brief.run} at {address.removeprefix('tcp://')} (key {key.coordinator.decode()}) executes its script "
        f"on this machine, with your rights: {brief.name}, {len(brief.script)} bytes, SHA-256 {digest}"
        + (f", arguments {words}" if words else "")
    )
