"""A view: the members of a run from one change of membership to the next, under a number that only grows.

The number (the *epoch* of a view) fences everything: a message of an older one is refused wherever it arrives.
Ranks are positions in a view, so they change with it; a member's id never does, and is never used again.
"""

import msgspec


class View(msgspec.Struct, frozen=True):
    """Who takes part, in order of rank."""

    epoch: int = 0
    members: tuple[str, ...] = ()

    def rank(self, member: str) -> int:
        return self.members.index(member)

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __len__(self) -> int:
        return len(self.members)
