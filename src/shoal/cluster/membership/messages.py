"""What members and the coordinator say to each other. A closed set: anything else is not decoded.

member  -> coordinator    Hello, Beat, Standing, Leave       launcher -> coordinator    Gone
coordinator -> member     Lease, Propose, Install, Evicted   member -> member           Confirm
"""

import msgspec

from shoal.cluster.membership.view import View


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base; the class name is the tag on the wire."""


class Hello(Message, frozen=True, kw_only=True):
    """I want to take part."""

    member: str
    host: str = ""


class Beat(Message, frozen=True, kw_only=True):
    """I live: this far is my training loop. Sent several times a second while the process can run at all."""

    member: str
    epoch: int
    """Of the view I have installed."""
    promised: int
    """The highest view I was asked to enter."""
    applied: int
    step: int = 0
    period: float = 0.0
    """Median seconds of my last steps; 0 as long as that is unknown."""
    doing: str = ""
    sent: float = 0.0
    """My own clock; it comes back in `Lease` and means nothing to anybody else."""


class Standing(Message, frozen=True, kw_only=True):
    """Where I stand, now that I have left the view before: the answer to `Propose`."""

    member: str
    epoch: int
    """The proposed one."""
    applied: int
    """Operations that are complete here; the next one may be under way."""
    formed: int = 0
    """If I hold the whole result of the next one: the epoch of the view that formed it. Else 0."""
    blank: bool = False
    """I have no state yet: neither from a donor nor from a checkpoint."""
    between: bool = False
    """I stand right before the step the proposal named."""


class Leave(Message, frozen=True, kw_only=True):
    """I go, and say so."""

    member: str


class Gone(Message, frozen=True, kw_only=True):
    """A launcher saw this member's process end."""

    member: str
    reason: str


class Lease(Message, frozen=True, kw_only=True):
    """Your beat was heard: train on, for as long as the rules say, from the moment you sent it."""

    sent: float


class Propose(Message, frozen=True, kw_only=True):
    """Leave your view, and say where you stand; a new one is being made."""

    view: View
    step: int = 0
    """Not before this step begins: newcomers enter between two steps, the same two for everybody. 0: now."""


class Install(Message, frozen=True, kw_only=True):
    """The new view. Operations up to `through` are complete; later ones are done (again) in this view."""

    view: View
    through: int
    fresh: tuple[str, ...] = ()
    """Members that have no state yet."""
    between: bool = False
    """Everybody stands between the same two steps: the next one is shared out among the members of this view."""
    donor: str = ""
    """Who gives it to them; empty: nobody has it, so all begin with the newest checkpoint, or from the start."""


class Evicted(Message, frozen=True, kw_only=True):
    """You are no member any more."""

    epoch: int
    reason: str


class Confirm(Message, frozen=True, kw_only=True):
    """I hold the whole result of operation `number`, formed in view `epoch`."""

    member: str
    epoch: int
    number: int


Report = Hello | Beat | Standing | Leave | Gone
"""What a coordinator hears."""
Order = Lease | Propose | Install | Evicted
"""What a coordinator says."""
