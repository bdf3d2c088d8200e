"""The messages between members and the coordinator. A closed set: nothing else is decoded."""

from typing import Annotated

import msgspec

from shoal.membership.view import MOST_MEMBERS, WIRE_NAMES, Generation, MembershipView, Name, Names, PlanString

LONGEST_TEXT = 240

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
"""Words for people to read: one line, and nothing that moves a terminal's cursor."""


def printable(text: str) -> str:
    """The same as one line of `Text`: errors may quote what a peer has sent."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_TEXT]


class ProtocolMessage(
    msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True, rename=WIRE_NAMES
):
    """Base; the class name is the tag on the wire."""


class MemberInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=WIRE_NAMES):
    """Where a member is reached by the others, and by which key; empty where all share one host's memory."""

    address: Annotated[str, msgspec.Meta(max_length=120, pattern=r"^(tcp://[0-9a-zA-Z.:\[\]-]+)?\Z")] = ""
    public: Annotated[str, msgspec.Meta(max_length=40, pattern=r"^([0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40})?\Z")] = ""
    host: Text = ""
    remote: bool = False
    """Whether it is of another machine than the one the run began on: it sees neither ledger nor checkpoints."""
    host_group: Text = ""
    """Shared-memory group id; empty if none."""


class JoinRequest(ProtocolMessage, frozen=True, kw_only=True):
    """I want to take part."""

    member: Name
    info: MemberInfo = MemberInfo()
    waits: bool = False
    """But not yet: first I take over a member's state, while the others train."""


class Heartbeat(ProtocolMessage, frozen=True, kw_only=True):
    """I live: this far is my training loop. Sent several times a second while the process can run at all."""

    member: Name
    generation: Generation
    """Of the view I have installed."""
    promised: Generation
    """The highest view I was asked to enter."""
    applied: Count
    step: Count = 0
    period: Seconds = 0.0
    """Median seconds of my last steps; 0 as long as that is unknown."""
    idle: Seconds = 0.0
    """Seconds since my training thread ran last: 0 whenever it computes, or waits as it should."""
    doing: Text = ""
    sent: float = 0.0
    """My own clock; it comes back in `LeaseRenewal` and means nothing to anybody else."""


class ProposeAck(ProtocolMessage, frozen=True, kw_only=True):
    """Where I stand, now that I have left the view before: the answer to `ProposeView`."""

    member: Name
    generation: Generation
    """The proposed one."""
    applied: Count
    """Operations that are complete here; the next one may be under way."""
    formed: Generation = 0
    """If I hold the whole result of the next one: the generation of the view that formed it. Else 0."""
    blank: bool = False
    """I have no state yet: neither from a donor nor from a checkpoint."""
    streamed: bool = False
    """Whether a member of the view before this one has streamed most of the state to me."""
    between: bool = False
    """I stand right before the step the proposal named."""
    committed_generation: Generation = 0
    """Of the view whose members share out the next step's samples, as far as I know."""


class SuspectMember(ProtocolMessage, frozen=True, kw_only=True):
    """I hear nothing of that member, though the coordinator may; said again as long as it is so."""

    member: Name
    of: Name
    closed: bool = False
    """Nobody listens at its endpoint any more."""
    reason: Text = ""
    """What it has done, if it is heard but breaks the protocol; empty: it is not heard."""
    late: bool = False
    """What it has done is to keep this member waiting; it may itself wait for another."""


class LeaveRequest(ProtocolMessage, frozen=True, kw_only=True):
    """I go, and say so."""

    member: Name
    early: bool = False
    """The training goes on without me."""
    step: Count = 0
    """How many steps I have made."""
    fingerprint: Text = ""
    """Of the parameters I hold; empty if they need not be those of the others."""


Range = tuple[Count, Count]
"""Positions of a pass, from the first up to, not including, the second."""
MOST_RANGES = 256
Ranges = Annotated[tuple[Range, ...], msgspec.Meta(max_length=MOST_RANGES)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class HeldLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples that a worker was given and has not begun yet."""

    ahead: Count
    """Rounds that end before it counts."""
    ranges: Ranges


class LeaseRequest(ProtocolMessage, frozen=True, kw_only=True):
    """Where I stand in a pass whose samples are leased; with `wants`, give me a batch of it. Said with every beat."""

    member: Name
    key: tuple[Count, Count, Count]
    """Of the pass: loader, epoch, number."""
    round: Count
    """The step at which the round under way began; the same on all members."""
    pool: Ranges
    """What no round before it has counted."""
    batch: Number
    """Samples of a lease."""
    least: Number
    """With fewer than these left, nothing is given."""
    steps: Number
    """Batches for each member in a round."""
    held: Annotated[tuple[HeldLease, ...], msgspec.Meta(max_length=MOST_RANGES)] = ()
    reached: Count = 0
    """Behind the highest position I was ever given in this pass."""
    number: Count = 0
    """Of the request; an answer says which one it is for."""
    wants: bool = False
    waits: bool = False
    """My training thread stands still for it."""


class SamplesLeased(ProtocolMessage, frozen=True, kw_only=True):
    """Train these samples; they are yours until a round has counted them."""

    key: tuple[Count, Count, Count]
    round: Count
    number: Count
    ahead: Count
    """Rounds to be closed after `round` before this counts."""
    ranges: Ranges
    """Empty: nothing is left that nobody has."""


class PlanRequest(ProtocolMessage, frozen=True, kw_only=True):
    """My script wants another plan; said again until a view has it, or a later one."""

    member: Name
    plan: PlanString
    number: Count
    """Of this switch. Workers run one script, so the same number from another worker is the same request."""


class ProcessExited(ProtocolMessage, frozen=True, kw_only=True):
    """A launcher saw this member's process end."""

    member: Name
    reason: Text


class LeaseRenewal(ProtocolMessage, frozen=True, kw_only=True):
    """Your beat was heard: train on for `seconds` from the moment you sent it."""

    sent: float
    seconds: Seconds


class ProposeView(ProtocolMessage, frozen=True, kw_only=True):
    """Leave your view, and say where you stand; a new one is being made."""

    view: MembershipView
    missing: Names = ()
    """Members that have not answered yet: the suspects of a worker that waits for the view."""
    step: Count = 0
    """Not before this step begins: newcomers enter between two steps, the same two for everybody. 0: now."""


class InstallView(ProtocolMessage, frozen=True, kw_only=True):
    """The new view. Operations up to `through` are complete; later ones are done (again) in this view."""

    view: MembershipView
    through: Count
    fresh: Names = ()
    """Members that have no state yet."""
    streamed: Names = ()
    """Those of them to whom a member has streamed most of it."""
    between: bool = False
    """Everybody stands between the same two steps: the next one is shared out among the members of this view."""
    committed_view: MembershipView = MembershipView()
    """The members that share out the next step, if some began it in a view that others never entered; else none."""
    donor: Text = ""
    """The donor of the state; empty: no member has it, so all begin with the newest checkpoint, or from the start."""
    infos: Annotated[tuple[MemberInfo, ...], msgspec.Meta(max_length=MOST_MEMBERS)] = ()
    """Where each member of the view is reached, in order of rank."""


class StreamStateTo(ProtocolMessage, frozen=True, kw_only=True):
    """This one would like to have your state before it enters; said again as long as it waits for it."""

    generation: Generation
    """The view that stands."""
    member: Name
    info: MemberInfo


class StreamStateFrom(ProtocolMessage, frozen=True, kw_only=True):
    """The member that was asked to stream its state to you."""

    generation: Generation
    member: Name
    info: MemberInfo
    patience: Seconds
    """In which something should come from it."""


class MemberEvicted(ProtocolMessage, frozen=True, kw_only=True):
    """You are no member any more."""

    generation: Generation
    reason: Text


class RunOver(ProtocolMessage, frozen=True, kw_only=True):
    """The run is over, for everybody."""

    well: bool
    """Whether it came to its end; who is in the middle of something then finishes it."""
    reason: Text


class JoinRefused(ProtocolMessage, frozen=True, kw_only=True):
    """You cannot become a member, and this is why; nothing was changed by what you said."""

    reason: Text
    later: bool = False
    """It may be otherwise soon: your machine's own workers are here still, and perhaps lost."""


class ConfirmResult(ProtocolMessage, frozen=True, kw_only=True):
    """I hold the whole result of operation `number`, formed in view `generation`."""

    member: Name
    generation: Generation
    number: Count


Report = (
    JoinRequest | Heartbeat | ProposeAck | SuspectMember | LeaveRequest | ProcessExited | PlanRequest | LeaseRequest
)
"""What a coordinator hears."""
Order = (
    LeaseRenewal
    | ProposeView
    | InstallView
    | MemberEvicted
    | JoinRefused
    | RunOver
    | StreamStateTo
    | StreamStateFrom
    | SamplesLeased
)
"""What a coordinator says."""
