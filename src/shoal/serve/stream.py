"""The versions of one servable in the order of their numbers, and which of them should be served.

The newest is served, or the newest `keep`. `roll_back` goes to an earlier member of the stream, and stays there until
`follow_newest`, whatever appears meanwhile.
"""

from collections.abc import Iterable

from shoal.serve.errors import ModelMissing


class VersionStream:
    """Numbers of versions that exist, ascending; no state of loading, which is the manager's."""

    def __init__(self, name: str, keep: int = 1) -> None:
        self.name, self.keep = name, keep
        self._numbers: list[int] = []
        self._pinned: int | None = None
        self._directed: int | None = None
        self._beside: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._numbers)

    @property
    def pinned(self) -> int | None:
        """The version that was rolled back to."""
        # A version that was rolled back to may have been removed since.
        return self._pinned if self._pinned in self._numbers else None

    def update(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Take over what exists now; returns the numbers that are new, in order."""
        found = sorted(set(numbers))
        fresh = tuple(number for number in found if number not in self._numbers)
        self._numbers = found
        return fresh

    def wanted(self) -> tuple[int, ...]:
        """Numbers that should be loaded, the preferred one last."""
        if self.pinned is not None:
            rest = [number for number in self._numbers if number < self.pinned]
            return (*rest[len(rest) - self.keep + 1 :], self.pinned) if self.keep > 1 else (self.pinned,)
        if self._directed in self._numbers:
            beside = [number for number in self._beside if number in self._numbers and number != self._directed]
            return (*beside, self._directed)
        return tuple(self._numbers[-self.keep :])

    def direct(self, number: int | None, beside: tuple[int, ...] = ()) -> None:
        """Serve `number` and load others beside it, unless somebody rolls back; None: the newest."""
        self._directed, self._beside = number, beside

    def earlier(self, to: int | None = None) -> int:
        """The number to roll back to: `to`, or the one before the one that is served. ModelMissing if there is none."""
        if to is None:
            now = self.wanted()[-1] if self._numbers else 0
            to = max((number for number in self._numbers if number < now), default=None)
            if to is None:
                raise ModelMissing(f"{self.name!r} has no version before {now}; nothing to roll back to")
        if to not in self._numbers:
            there = ", ".join(map(str, self._numbers)) or "none"
            raise ModelMissing(f"{self.name!r} has no version {to}; it has {there}")
        return to

    def roll_back(self, to: int | None = None) -> int:
        """Serve `to`, or the one before the one that is served; returns its number."""
        self._pinned = self.earlier(to)
        return self._pinned

    def pin(self, number: int | None) -> None:
        """Serve this version while it exists; None: the newest."""
        self._pinned = number

    def follow_newest(self) -> None:
        """Take back a roll back."""
        self._pinned = None
