"""How a machine learns what a run is before it is part of it. It knows the coordinator's address and has a key.

    joiner ── Ask(workers, versions, look) ──> coordinator     key known? versions alike? slots left?
           <── Brief(script, plan) or Refused ──               shown to the user, who agrees
           ── Ask(workers, versions) ──>
           <── Brief(script, plan, ids) or Refused ──

An Ask cannot name a run, so its envelope names `ANY_RUN`, which is good for nothing else. Nobody without a listed key
gets as far as asking.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from shoal.membership.protocol import ProtocolMessage, Text
from shoal.membership.view import MOST_MEMBERS, Name, Names
from shoal.transport.endpoint import BookEntry

ANY_RUN = "any.run"
LARGEST_SCRIPT = 1 << 20
LARGEST_ARGUMENTS = 64 << 10
"""Bytes of a script, and of all its arguments together."""
LARGEST_ANSWER = LARGEST_SCRIPT + (256 << 10)
MATTERS = ("shoal", "torch")
"""What must be of the same major and minor version on all machines."""

FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
Token = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
ServerAddress = Annotated[str, msgspec.Meta(max_length=120, pattern=r"^tcp://[0-9a-zA-Z.:\[\]-]+\Z")]
ServerKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}\Z")]
Argument = Annotated[str, msgspec.Meta(max_length=LARGEST_ARGUMENTS)]


class RunQuery(ProtocolMessage, frozen=True, kw_only=True):
    """A launcher asks to bring this number of workers: what do they run, and under which ids?"""

    workers: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]
    token: Token
    """Of this question: asked again, because the answer was lost, it is answered alike."""
    versions: Annotated[dict[Text, Text], msgspec.Meta(max_length=8)]
    slot: Annotated[int, msgspec.Meta(ge=-1, le=MOST_MEMBERS)] = -1
    """Of a worker of mine that is lost: this one takes its place."""
    look: bool = False
    """Only tell me what I would run: no id is promised."""


class RunBrief(ProtocolMessage, frozen=True, kw_only=True):
    """What the run is, and the ids of the workers that may come."""

    run: Name
    name: FileName
    """Of the script's file."""
    script: Annotated[bytes, msgspec.Meta(max_length=LARGEST_SCRIPT)]
    arguments: Annotated[tuple[Argument, ...], msgspec.Meta(max_length=4096)]
    plan: Annotated[str, msgspec.Meta(max_length=4096)]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    checkpoint: Text
    until: Text = ""
    """What $SHOAL_UNTIL says: workers ask each other about it."""
    members: Names = ()
    codecs: Annotated[tuple[tuple[Text, Text], ...], msgspec.Meta(max_length=8)] = ()
    """Codecs of the plan that other packages bring: each one's name, and its package with version."""
    servers: Annotated[tuple[tuple[ServerAddress, ServerKey], ...], msgspec.Meta(max_length=128)] = ()
    """Of the plan: where each listens, and its public key; behind them their replicas."""
    founding: bool = False
    """The run has not begun: these workers are in its first view, or else come as newcomers."""

    def read_servers(self) -> list[BookEntry]:
        """The run's servers, by the names under which all members know them."""
        told = enumerate(self.servers)
        return [BookEntry(address, key.encode(), "", f"server {number}") for number, (address, key) in told]


def find_version_mismatch(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Why a machine with the versions `there` cannot take part in a run on `here`; empty: it can."""
    for name in MATTERS:
        ours, theirs = here.get(name, "none"), there.get(name, "none")
        if minor(ours) != minor(theirs):
            return f"the run is on {name} {ours} and this machine has {theirs}; install the same on both"
    return ""


def minor(version: str) -> tuple[str, ...]:
    """`2.13.0+cpu` is `("2", "13")`."""
    return tuple(version.partition("+")[0].split(".")[:2])
