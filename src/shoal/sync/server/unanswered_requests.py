"""Requests of a member that have no answer yet, so that they can be sent to the process that takes over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class UnansweredRequest:
    """What was sent to a server."""

    server: int
    channel: int
    head: bytes
    arrays: Sequence[Any]


class UnansweredRequests:
    """By number, in the order they were sent."""

    def __init__(self) -> None:
        self._pending: dict[int, UnansweredRequest] = {}

    def add(self, number: int, request: UnansweredRequest) -> None:
        self._pending[number] = request

    def note_answer(self, number: int) -> None:
        """The final reply has come."""
        self._pending.pop(number, None)

    def forget(self, number: int) -> None:
        """Nobody waits for the reply. One without arrays is sent again all the same, because the server must hear of
        it; of one with arrays the member has taken back the memory, and its view has ended."""
        if number in self._pending and self._pending[number].arrays:
            del self._pending[number]

    def find_oldest(self, number: int) -> int:
        """Return the first number without an answer, when request `number` is about to leave."""
        return next(iter(self._pending), number)

    def list_of(self, server: int) -> list[UnansweredRequest]:
        # a copy, because replies may be noted by another thread meanwhile
        return [each for each in list(self._pending.values()) if each.server == server]
