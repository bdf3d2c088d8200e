"""A view: the members of a run from one change of membership to the next, under a number that only grows.

The number (the *generation* of a view) fences everything: a message of an older one is refused wherever it arrives.
Ranks are positions in a view, so they change with it; a member's id never does, and is never used again.
"""

from typing import Annotated

import msgspec

from shoal.core.ids import PATTERN

MOST_MEMBERS = 512
WIRE_NAMES = {
    "generation": "epoch",
    "info": "plate",
    "infos": "plates",
    "streamed": "lent",
    "remote": "guest",
    "slot": "seat",
    "host_group": "house",
    "committed_view": "dealt",
    "committed_generation": "dealt",
}
"""Fields whose name in messages and logs is older than the one in the code: both must keep loading."""

Generation = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Name = Annotated[str, msgspec.Meta(pattern=f"^{PATTERN.pattern}\\Z")]
"""A member's id. Limits written as types are checked when something is decoded, before anybody sees it."""
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
LONGEST_PLAN = 1024
PlanString = Annotated[str, msgspec.Meta(max_length=LONGEST_PLAN, pattern=r"^[ -~]*\Z")]
"""A plan as text: one line of ASCII."""


class MembershipView(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The members in order of rank, and their plan."""

    generation: Generation = 0
    members: Names = ()
    plan: PlanString = ""
    """The plan, once it was switched; empty: the one this attempt of the run was started with."""
    switches: Generation = 0
    """How often the plan was switched: the number of `plan`, the same on all members."""

    def rank(self, member: str) -> int:
        return self.members.index(member)

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __len__(self) -> int:
        return len(self.members)
