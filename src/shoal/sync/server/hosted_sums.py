"""The sums of a server process, and who waits for each: all are answered as soon as the last one has sent its part."""

from collections.abc import Sequence
from typing import Any

import torch

from shoal.core.errors import PayloadError
from shoal.sync.server.messages import SumRequest
from shoal.sync.server.sum_rounds import OpenSum, SumKey, SumRounds, read_tensor

MOST_OPEN = 2
"""Sums of the same tensor that a member may take part in at a time: an exchange ends before the next one begins."""
WaitingMembers = dict[str, int]
"""Member -> number of its request."""


class HostedSums:
    """Of one server."""

    def __init__(self) -> None:
        self._sums = SumRounds()
        self._waiting: dict[SumKey, WaitingMembers] = {}

    @property
    def open_count(self) -> int:
        return self._sums.open_count

    def add(
        self, member: str, number: int, request: SumRequest, arrays: Sequence[Any], oldest: int | None
    ) -> tuple[WaitingMembers, Any]:
        """Take a member's part; returns who is to be answered, and by what: nobody while others are missing.

        `oldest`: the view that the launcher has named; None where all members are this user's own.
        """
        key = SumKey(request.generation, request.channel, request.index, request.number)
        if oldest is not None and key.generation < oldest:
            return {}, None  # that view has ended: those that stay repeat it in the newest
        if oldest is not None and self._sums.open_numbers(member, key) >= MOST_OPEN:
            raise PayloadError(f"{member} begins sum {key.number} of tensor {key.index} before others have ended")
        self._waiting.setdefault(key, {})[member] = number
        total = self._sums.add(member, key, request.members, read_tensor(member, request.dtype, arrays))
        due: WaitingMembers = {} if total is None else self._waiting.pop(key)
        if any(open_.generation < key.generation for open_ in self._waiting):
            self._forget_before(key.generation)
        return due, None if total is None else total.view(torch.uint8).numpy()

    def _forget_before(self, generation: int) -> None:
        self._waiting = {key: who for key, who in self._waiting.items() if key.generation >= generation}

    def find_missing(self, member: str, number: int) -> list[str]:
        """Return whom this request waits for; empty if it does not wait here."""
        keys = [key for key, waiting in self._waiting.items() if waiting.get(member) == number]
        return self._sums.find_missing(keys[-1]) if keys else []

    def follow(self, generation: int) -> None:
        """Drop what is open of views before this one."""
        self._forget_before(generation)
        self._sums.follow(generation)

    def take_snapshot(self) -> tuple[list[OpenSum], int, list[tuple[SumKey, WaitingMembers]]]:
        """Open sums, the newest view, and who waits."""
        waiting = [(key, dict(who)) for key, who in self._waiting.items()]
        return self._sums.list_open(), self._sums.generation, waiting

    def restore(
        self, sums: Sequence[OpenSum], generation: int, waiting: Sequence[tuple[SumKey, WaitingMembers]]
    ) -> None:
        """Go on from what another server's remembered."""
        self._sums.restore(sums, generation)
        self._waiting = dict(waiting)
