"""The keys by which a coordinator and the members of other hosts know each other; both sides must show theirs.

On one host no keys are needed: the socket lies in a folder that only the user can enter.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.membership.allow_list import AllowList
from shoal.transport.keys import CurveKeyPair


@dataclass(frozen=True)
class ServerCredentials:
    """A coordinator's side: its own pair, and whom it lets in."""

    pair: CurveKeyPair
    allowed: Mapping[bytes, int]
    """By public key: how many members may live under it at a time."""
    invited: AllowList | None = None
    """The part of `allowed` that may change while the run trains."""

    def admits(self, public: bytes) -> bool:
        """Whether the list as it is now admits this key."""
        if self.invited is not None:
            self.invited.refresh()
        return public in self.allowed


@dataclass(frozen=True)
class ClientCredentials:
    """A member's side: its own pair, and the public key its coordinator must show."""

    pair: CurveKeyPair
    coordinator: bytes
