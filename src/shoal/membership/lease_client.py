"""A worker's end of the coordinator's lease book: the training thread asks here, the agent's thread sends."""

import threading
from collections.abc import Callable

import msgspec

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError
from shoal.membership.protocol import HeldLease, LeaseRequest, LeasesClosing, SamplesLeased

NAP = 0.5
"""Longest wait between two checks whether this worker has been evicted or the run has ended."""


class LeaseClient:
    """`wake` makes the agent's thread send now; `check` raises if this worker is out or the run is over."""

    def __init__(self, wake: Callable[[], None], check: Callable[[], None]) -> None:
        self._wake, self._check = wake, check
        # A lock of its own, because the agent's is held while listeners run.
        self._heard = threading.Condition()
        self._requests: dict[int, LeaseRequest] = {}
        """The current request of each loader."""
        self._answers: dict[int, SamplesLeased] = {}
        self._closing: dict[int, LeasesClosing] = {}
        self._unsaid = False

    def say(self, request: LeaseRequest) -> None:
        """Replace this worker's request for a pass. It is sent at once, and again with every beat."""
        loader = request.key[0]
        with self._heard:
            answer = self._answers.get(loader)
            # The answer came while the training thread made this request: it must not ask for the same batch again.
            if answer is not None and request.wants and _is_for(answer, request):
                request = _with_answer(request, answer)
            self._requests[loader], self._unsaid = request, True
        self._wake()

    def wait(self, request: LeaseRequest, deadline: Deadline) -> SamplesLeased:
        """Send a request that says the training thread stands still, and wait for the answer."""
        self.say(msgspec.structs.replace(request, wants=True, waits=True))
        with self._heard:
            while (answer := self._answers.get(request.key[0])) is None or not _is_for(answer, request):
                self._check()
                if deadline.expired:
                    raise DeadlineError(
                        f"{request.member} waited {deadline.budget:.0f} s for samples; the coordinator does not "
                        "answer, or another worker has not come to this pass of its loader"
                    )
                self._heard.wait(min(NAP, deadline.left))
            return answer

    def forget(self, loader: int) -> None:
        """Drop the request of a loader whose pass is over."""
        with self._heard:
            self._requests.pop(loader, None)
            self._answers.pop(loader, None)
            self._closing.pop(loader, None)

    def is_closing(self, request: LeaseRequest) -> bool:
        """Whether another worker has come to the end of the round that this request is made in."""
        with self._heard:
            said = self._closing.get(request.key[0])
        return said is not None and (said.key, said.round) == (request.key, request.round)

    def unsaid(self, beat: bool) -> list[LeaseRequest]:
        """Return what the agent's thread sends now: with a beat all requests again, because messages get lost."""
        with self._heard:
            due, self._unsaid = beat or self._unsaid, False
            return list(self._requests.values()) if due else []

    def hear(self, answer: SamplesLeased | LeasesClosing) -> None:
        """Take in leased samples or the end of a round, in the agent's thread. A request then says what a restarted
        coordinator needs."""
        loader = answer.key[0]
        with self._heard:
            request = self._requests.get(loader)
            if isinstance(answer, LeasesClosing):
                self._closing[loader] = answer
                return
            if request is None or not request.wants or not _is_for(answer, request):
                return
            self._answers[loader] = answer
            self._requests[loader] = _with_answer(request, answer)
            self._heard.notify_all()


def _is_for(answer: SamplesLeased, request: LeaseRequest) -> bool:
    return answer.key == request.key and answer.number == request.number


def _with_answer(request: LeaseRequest, answer: SamplesLeased) -> LeaseRequest:
    if not answer.ranges:
        return msgspec.structs.replace(request, wants=False)
    held = HeldLease(ahead=answer.ahead, ranges=answer.ranges)
    reached = max(request.reached, answer.ranges[-1][1])
    return msgspec.structs.replace(request, wants=False, held=(*request.held, held), reached=reached)
