"""The agent's thread: it talks to the coordinator, so that the training thread never waits for a socket."""

import threading
from collections.abc import Callable
from typing import Protocol

from shoal.core import errors
from shoal.core.clock import now
from shoal.membership.coordinator_client import CoordinatorClient, ReconnectBackoff
from shoal.membership.envelope import ProtocolMismatch
from shoal.membership.lease_client import LeaseClient
from shoal.membership.protocol import LeaseRenewal, LeaveRequest, Order

BEAT = 0.25
"""Seconds between beats."""
LOOK = 0.02
"""Longest wait of the agent's thread, so that messages of the training thread leave soon."""
RETRY = 0.02
"""Seconds after which a beat is tried again if there was no connection."""


class AgentDuties(Protocol):
    """What the thread does for its agent. The agent takes its own lock in each of these."""

    id: str
    address: str
    leases: LeaseClient

    def speak(self, line: CoordinatorClient) -> bool:
        """Send a beat; return whether there was a connection."""

    def answer(self, line: CoordinatorClient) -> None:
        """Send what the training thread has decided meanwhile."""

    def hear(self, order: Order, line: CoordinatorClient) -> None:
        """Do what the coordinator says."""

    def fail(self, error: errors.ShoalError) -> None:
        """Hand the error that has ended this thread to the training thread."""


class AgentLoop:
    """The thread of one agent. `connect` makes its client, in the thread that uses it."""

    def __init__(self, agent: AgentDuties, connect: Callable[[], CoordinatorClient]) -> None:
        self._agent, self._connect = agent, connect
        # Guards `_client` alone: any thread may wake the client, and only this one opens and closes it.
        self._open = threading.Lock()
        self._client: CoordinatorClient | None = None
        self._began = self._heard = now()
        self._closing = False
        self._goodbye: LeaveRequest | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-agent", daemon=True)

    def start(self) -> None:
        self._began = self._heard = now()
        self._thread.start()

    @property
    def unheard(self) -> float:
        """Return the seconds since the coordinator was last heard, or since the start."""
        return now() - self._heard

    def describe_silence(self) -> str:
        """Return `which was never heard` or `last heard 3.2 s ago`; empty if it was heard just now."""
        if self._heard == self._began:
            return "which was never heard"
        ago = self.unheard
        # Every beat is answered, so after four of them without an answer something is wrong.
        return f"last heard {ago:.1f} s ago" if ago > 4 * BEAT else ""

    def end(self, goodbye: LeaveRequest | None, seconds: float) -> None:
        """End the thread, after saying goodbye if there is anything to say; wait at most this long for it."""
        self._goodbye, self._closing = goodbye, True
        if self._thread.ident is not None:  # else it was never started, and cannot be joined
            self._thread.join(seconds)

    def wake(self) -> None:
        """Make the thread send now; any thread may call this."""
        with self._open:
            if self._client is not None:
                self._client.wake()

    def _run(self) -> None:
        agent = self._agent
        try:
            line = self._connect().connect()
            with self._open:
                self._client = line
            try:
                self._serve(line)
            finally:
                # Forgotten before it is closed: a wake-up must not write to a descriptor that was reused.
                with self._open:
                    self._client = None
                line.close()
        except ProtocolMismatch as error:
            agent.fail(errors.UsageError(f"{agent.id} cannot join at {agent.address}: {error}"))
        except errors.ShoalError as error:
            agent.fail(error)
        except Exception as error:  # noqa: BLE001  (raised in the training thread, by `check`)
            agent.fail(errors.ShoalError(f"the agent of {agent.id} failed: {type(error).__name__}: {error}"))

    def _serve(self, line: CoordinatorClient) -> None:
        due, backoff = 0.0, ReconnectBackoff(now())
        while not self._closing:
            if backoff.due(now()):
                line.renew()
            # Beats by this clock alone, whatever else is sent: the coordinator judges silence by them.
            beat = now() >= due
            if beat:
                due = now() + (BEAT if self._agent.speak(line) else RETRY)
            # Between beats too: all members stand still until the last has answered a proposal.
            self._agent.answer(line)
            for request in self._agent.leases.unsaid(beat):
                line.say(request)
            for order in line.orders(min(LOOK, max(0.0, due - now()))):
                moment = self._heard = now()
                backoff.heard(moment)
                if isinstance(order, LeaseRenewal):
                    # It returns our own clock from the beat it answers, so no two clocks are compared.
                    backoff.round_trip(moment - order.sent)
                self._agent.hear(order, line)
        if self._goodbye is not None:
            line.say(self._goodbye)
