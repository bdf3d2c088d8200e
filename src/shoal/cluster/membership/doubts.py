"""Members that hear nothing of each other, though the coordinator hears them all: a link is broken, or one way of it.

Training cannot go on with both, so one of them is given up: whoever most others doubt, and of several the last of the
view. A doubt counts while it is said again and again: a moment's silence is nobody's loss. Where nobody listens at a
member's door any more, and the coordinator has not heard it either for a few beats, it is gone.

Who takes the place of one that was no longer heard sits behind the same link, so it is let in only after a while,
longer every time: members must not come and go with every moment of a bad link.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.cluster.membership.messages import Doubt, Plate
from shoal.cluster.membership.view import View

LASTS = 1.5
"""Seconds after which a doubt that was not said again is over."""
PERSISTS = 1.0
"""Seconds it must last to count."""
BEATS = 1.0
"""Seconds without a beat after which a closed door means a loss."""
CLOSED = "nobody listens at its door"
HOLD, LONGEST_HOLD = 20.0, 640.0
"""Seconds before the address of one that was no longer heard is let in again: doubled every time."""


@dataclass
class _Held:
    since: float
    last: float
    closed: bool


class Doubts:
    """Who doubts whom."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], _Held] = {}
        self._kept_out: dict[str, tuple[float, float]] = {}
        """By address: until when, and for how long."""

    def given_up(self, plate: Plate, now: float) -> None:
        """One that was no longer heard had this plate."""
        _, before = self._kept_out.get(address(plate), (0.0, HOLD / 2))
        lasts = min(2 * before, LONGEST_HOLD)
        self._kept_out[address(plate)] = (now + lasts, lasts)

    def kept_out(self, plate: Plate, now: float) -> bool:
        return now < self._kept_out.get(address(plate), (0.0, 0.0))[0]

    def hear(self, doubt: Doubt, now: float) -> None:
        key = (doubt.member, doubt.of)
        since = self._held[key].since if key in self._held and now - self._held[key].last <= LASTS else now
        self._held[key] = _Held(since, now, doubt.closed)

    def clear(self) -> None:
        """The view has changed."""
        self._held.clear()

    def verdict(self, view: View, heard: Mapping[str, float], now: float) -> tuple[str, str] | None:
        """Whom to give up, and why. `heard`: when the coordinator heard each living member last."""
        living = {
            key: held
            for key, held in self._held.items()
            if now - held.last <= LASTS and all(member in view and member in heard for member in key)
        }
        for (by, of), held in living.items():
            if held.closed and now - heard[of] > BEATS:
                return of, f"{CLOSED}, says {by}"
        lasting = [of for (_, of), held in living.items() if now - held.since >= PERSISTS and not held.closed]
        if not lasting:
            return None
        count = Counter(lasting)
        victim = max(count, key=lambda member: (count[member], view.rank(member)))
        by = ", ".join(sorted(member for (member, of) in living if of == victim))
        return victim, f"no longer heard by {by}"


def address(plate: Plate) -> str:
    """Of the machine, without the port."""
    return plate.address.rpartition(":")[0]
