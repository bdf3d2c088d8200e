"""The messages between members and the coordinator: a closed schema, so nothing else is ever decoded."""

from typing import Annotated

import msgspec

from shoal.membership.view import MOST_MEMBERS, WIRE_NAMES, Generation, MembershipView, Name, Names, PlanString

LONGEST_TEXT = 240

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
"""Text for people: one line, without control characters, because it may end up on a terminal."""


def printable(text: str) -> str:
    """Return the text as one valid line of `Text`: error messages may quote what a peer has sent."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_TEXT]


class ProtocolMessage(
    msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True, rename=WIRE_NAMES
):
    """Base of all messages; the class name is the tag on the wire."""


class MemberInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=WIRE_NAMES):
    """The address and public key of a member; empty if all members share one host's memory."""

    address: Annotated[str, msgspec.Meta(max_length=120, pattern=r"^(tcp://[0-9a-zA-Z.:\[\]-]+)?\Z")] = ""
    public: Annotated[str, msgspec.Meta(max_length=40, pattern=r"^([0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40})?\Z")] = ""
    host: Text = ""
    remote: bool = False
    """Whether it runs on another machine than the one the run began on, and so sees neither ledger nor checkpoints."""
    host_group: Text = ""
    """Shared-memory group id; empty if none."""


class JoinRequest(ProtocolMessage, frozen=True, kw_only=True):
    """Ask to become a member; sent with every beat until a view has the sender."""

    member: Name
    info: MemberInfo = MemberInfo()
    waits: bool = False
    """Whether the sender first wants to receive a member's state, while the others train."""


class Heartbeat(ProtocolMessage, frozen=True, kw_only=True):
    """Show that the sender lives and how far it is; sent several times a second by the agent's thread."""

    member: Name
    generation: Generation
    """The generation of the installed view."""
    promised: Generation
    """The highest generation the sender was asked to enter."""
    applied: Count
    step: Count = 0
    period: Seconds = 0.0
    """Median seconds of the last steps; 0 while unknown."""
    idle: Seconds = 0.0
    """Seconds since the training thread last used its CPU: 0 while it computes, or waits by polling."""
    doing: Text = ""
    sent: float = 0.0
    """The sender's clock. It comes back in `LeaseRenewal`; clocks of different machines are never compared."""


class ProposeAck(ProtocolMessage, frozen=True, kw_only=True):
    """Answer `ProposeView`: the sender has left its view, and this is its position."""

    member: Name
    generation: Generation
    """The proposed generation."""
    applied: Count
    """Operations that are complete at the sender; the next one may be under way."""
    formed: Generation = 0
    """If the sender holds the whole result of the next operation: the generation that formed it. Else 0."""
    blank: bool = False
    """Whether the sender has no state yet, neither from a donor nor from a checkpoint."""
    streamed: bool = False
    """Whether a member has already streamed most of the state to the sender."""
    between: bool = False
    """Whether the sender stands right before the step that the proposal named."""
    committed_generation: Generation = 0
    """The generation of the view whose members share the next step's samples, as far as the sender knows."""


class SuspectMember(ProtocolMessage, frozen=True, kw_only=True):
    """Report that the sender does not hear a member, though the coordinator may; repeated while it is so."""

    member: Name
    of: Name
    closed: bool = False
    """Whether connections to its endpoint are refused."""
    reason: Text = ""
    """How it breaks the protocol, if it is heard; empty if it is not heard."""
    late: bool = False
    """Whether the reason is that it keeps the sender waiting; it may itself wait for another member."""


class LeaveRequest(ProtocolMessage, frozen=True, kw_only=True):
    """Say goodbye."""

    member: Name
    early: bool = False
    """Whether training goes on without the sender."""
    step: Count = 0
    """How many steps the sender has made."""
    fingerprint: Text = ""
    """Fingerprint of its parameters; empty if they need not equal those of the others."""


Range = tuple[Count, Count]
"""Positions of a pass, from the first up to, not including, the second."""
MOST_RANGES = 256
Ranges = Annotated[tuple[Range, ...], msgspec.Meta(max_length=MOST_RANGES)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class HeldLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples that were leased to a worker and are in no counted round yet."""

    ahead: Count
    """How many rounds end before the one that counts it."""
    ranges: Ranges


class LeaseRequest(ProtocolMessage, frozen=True, kw_only=True):
    """Report the sender's position in a leased pass, and with `wants` ask for a batch; sent with every beat."""

    member: Name
    key: tuple[Count, Count, Count]
    """The pass: loader, epoch, number."""
    round: Count
    """The step at which the round under way began; the same on all members."""
    pool: Ranges
    """The positions that no earlier round has counted."""
    batch: Number
    """Samples per lease."""
    least: Number
    """With fewer samples left than this, nothing is leased."""
    steps: Number
    """Batches per member and round."""
    fastest: bool = False
    """Whether a round ends when one member has trained `steps` batches, instead of when all have been trained."""
    closes: bool = False
    """Whether the sender has come to the end of the round; under `fastest` the others stop after their step."""
    held: Annotated[tuple[HeldLease, ...], msgspec.Meta(max_length=MOST_RANGES)] = ()
    reached: Count = 0
    """One past the highest position ever leased to the sender in this pass."""
    number: Count = 0
    """The request's number; its answer repeats it."""
    wants: bool = False
    waits: bool = False
    """Whether the training thread stands still until the answer comes."""


class SamplesLeased(ProtocolMessage, frozen=True, kw_only=True):
    """Lease samples to the receiver until a round has counted them."""

    key: tuple[Count, Count, Count]
    round: Count
    number: Count
    ahead: Count
    """How many rounds must end after `round` before the one that counts this lease."""
    ranges: Ranges
    """The positions; empty if all that is left is leased to others."""


class LeasesClosing(ProtocolMessage, frozen=True, kw_only=True):
    """A member has come to the end of the round that began at step `round`: train no more leases for it."""

    key: tuple[Count, Count, Count]
    round: Count


class PlanRequest(ProtocolMessage, frozen=True, kw_only=True):
    """Ask for another plan; repeated until a view has it, or a later one."""

    member: Name
    plan: PlanString
    number: Count
    """The switch's number. Workers run one script, so the same number from another worker is the same request."""


class ProcessExited(ProtocolMessage, frozen=True, kw_only=True):
    """Report, from a launcher, that a member's process has ended."""

    member: Name
    reason: Text


class LeaseRenewal(ProtocolMessage, frozen=True, kw_only=True):
    """Answer a beat: the member may train on for `seconds` from the moment it sent the beat."""

    sent: float
    seconds: Seconds


class ProposeView(ProtocolMessage, frozen=True, kw_only=True):
    """Propose a new view: the receiver leaves its own, and answers with its position."""

    view: MembershipView
    missing: Names = ()
    """Members that have not answered yet; a worker that waits for the view names them in its error."""
    step: Count = 0
    """Leave right before this step, because newcomers enter between the same two steps everywhere; 0: leave now."""


class InstallView(ProtocolMessage, frozen=True, kw_only=True):
    """Install the new view. Operations up to `through` are complete; later ones are done (again) in this view."""

    view: MembershipView
    through: Count
    fresh: Names = ()
    """Members that have no state yet."""
    streamed: Names = ()
    """Those of them to which a member has streamed most of the state."""
    between: bool = False
    """Whether all stand between the same two steps, so that this view's members share the samples of the next one."""
    committed_view: MembershipView = MembershipView()
    """The view whose members share the next step's samples, if some began it in a view that others never entered."""
    donor: Text = ""
    """The member that sends its state. Empty: no member has one, so all begin at the newest checkpoint or at step 0."""
    infos: Annotated[tuple[MemberInfo, ...], msgspec.Meta(max_length=MOST_MEMBERS)] = ()
    """Address and key of each member, in order of rank."""


class StreamStateTo(ProtocolMessage, frozen=True, kw_only=True):
    """Ask the receiver to stream its state to a newcomer that waits; repeated while it waits."""

    generation: Generation
    """The generation of the current view."""
    member: Name
    info: MemberInfo


class StreamStateFrom(ProtocolMessage, frozen=True, kw_only=True):
    """Tell a newcomer which member was asked to stream its state to it."""

    generation: Generation
    member: Name
    info: MemberInfo
    patience: Seconds
    """Seconds in which some of the state should arrive."""


class MemberEvicted(ProtocolMessage, frozen=True, kw_only=True):
    """Tell a worker that it is no longer a member."""

    generation: Generation
    reason: Text


class RunOver(ProtocolMessage, frozen=True, kw_only=True):
    """Tell a worker that the run is over for all."""

    well: bool
    """Whether it ended normally; a worker in the middle of an operation then finishes it."""
    reason: Text


class JoinRefused(ProtocolMessage, frozen=True, kw_only=True):
    """Refuse a request to join, and say why. The request has changed nothing."""

    reason: Text
    later: bool = False
    """Whether to try again soon: the slots are held by workers of the same machine, which may be lost."""


class ConfirmResult(ProtocolMessage, frozen=True, kw_only=True):
    """Tell a peer that the sender holds the whole result of operation `number`, formed in view `generation`."""

    member: Name
    generation: Generation
    number: Count


Report = (
    JoinRequest | Heartbeat | ProposeAck | SuspectMember | LeaveRequest | ProcessExited | PlanRequest | LeaseRequest
)
"""Messages to a coordinator."""
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
    | LeasesClosing
)
"""Messages from a coordinator."""
