"""A session whose view changes: its agent talks to the coordinator, and the training thread asks the session."""

import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, Evicted, PeerLost, RunEnded, ShoalError, ViewEnded
from shoal.hosts.status_board import StatusBoard
from shoal.membership.agent import MembershipAgent
from shoal.membership.credentials import ClientCredentials
from shoal.membership.lease_client import LeaseClient
from shoal.membership.listener import OperationTransport
from shoal.membership.protocol import InstallView, MemberInfo, StreamStateFrom
from shoal.membership.session import MembershipSession, slot_of
from shoal.membership.step_watchdog import from_board
from shoal.membership.view import MembershipView

EVICTION = 10.0
"""Seconds to wait for the coordinator to evict an accused member; it needs a beat and a round trip."""
# Seconds: between two looks, and the longest waits of a newcomer without and with updates to take in.
PAUSE, SLICE, SHORT_SLICE = 1e-3, 1.0, 0.02


class StateStream(Protocol):
    """The state that a member streams to a newcomer before it enters."""

    @property
    def proved(self) -> bool:
        """Return whether all of it has come, bit for bit as the sender holds it."""

    def receive(self, offer: StreamStateFrom | None) -> bool:
        """Take in what has come; return False once this worker has caught up, or the stream has failed."""

    def catch_up(self) -> int:
        """Take in the updates that have come since then; return how many items there were."""


class ElasticSession(MembershipSession):
    """The membership of one worker. All its waits end after `seconds`."""

    def __init__(
        self,
        member: str,
        address: str,
        run: str,
        board: StatusBoard,
        seconds: float,
        key: ClientCredentials | None = None,
        coordinator_timeout: float | None = None,
    ) -> None:
        """`coordinator_timeout`: seconds of silence after which a newcomer takes the run to be over."""
        super().__init__()
        self.member, self.seconds = member, seconds
        self.view = MembershipView()
        look = from_board(board, slot_of(member))
        self.agent = MembershipAgent(member, address, run, key=key, look=look, holds=self._left)
        self._transport = OperationTransport()
        self._holds: Callable[[], bool] = lambda: False
        self._number, self._inside = 0, False
        """The last operation the training thread entered, and whether it is still under way."""
        # Generation in which a member was accused, and how long the next operation waits for its eviction.
        self._accused = (-1, Deadline.after(0.0))
        self._early = False
        self._coordinator_timeout = coordinator_timeout

    def attach(self, transport: OperationTransport, info: MemberInfo | None = None) -> None:
        """Let a group carry the operations of this session; call it before `start`. `info`: where others reach it."""
        self._transport = transport
        if info is not None:
            self.agent.info = info

    def start(self) -> None:
        """Become a member with all other founders; raise Evicted if the run has begun without this worker."""
        self.agent.start()
        self._await_view(Deadline.after(self.seconds), None)
        if self.install.donor and self.member in self.install.fresh:
            raise Evicted(f"{self.member} was to be in the first view of the run, which has begun without it")
        # Founders all start from the same seed or checkpoint, so no member sends them a state.
        self.agent.filled()
        self._look()

    def join_running(
        self,
        take: Callable[[], MembershipView | None],
        stream: StateStream | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Become a member of a run that trains. `take` looks for the donor's state, and returns None until it is there.

        `is_ready`: whether this worker would not keep the others waiting; until then it does not ask to be let in.
        If no donor is left, because training is over or all are lost, the launcher ends this worker.
        """
        while stream is None and not is_ready():  # the others do not know of this worker yet
            time.sleep(PAUSE)
        self.agent.streaming_partners.waits = stream is not None
        self.agent.start()
        if stream is not None:
            self._receive_stream(stream, is_ready)
        deadline = Deadline.after(self.seconds)
        while self.agent.blank:
            if self.disturbed:
                # Again whenever the view changes: the donor may be the member that was lost.
                self._await_view(deadline, stream)
                self._look()
            if self.install.donor and (dealt := take()) is not None:
                self.agent.filled(dealt)
            elif deadline.expired:
                raise PeerLost(f"{self.member} waited {self.seconds:.0f} s for the state of {self.install.donor}")
            time.sleep(PAUSE)

    def _receive_stream(self, stream: StateStream, is_ready: Callable[[], bool]) -> None:
        """Take in the stream until it is complete, has failed, or a view needs this worker because others were lost."""
        streaming_partners = self.agent.streaming_partners
        while self.agent.view.generation == 0 and stream.receive(streaming_partners.offer):
            self.agent.check()
            time.sleep(PAUSE)
        if stream.proved:
            self.agent.note_streamed()
        while self.agent.view.generation == 0 and not stream.proved and not is_ready():
            self.agent.check()
            time.sleep(PAUSE)
        streaming_partners.waits = False

    def _await_view(self, deadline: Deadline, stream: StateStream | None) -> None:
        # updates go on while this worker waits, so that few are left when it enters
        most = SLICE if stream is None or not stream.proved else SHORT_SLICE
        while True:
            try:
                self.agent.wait_settled(Deadline.after(min(most, deadline.left)))
            except DeadlineError:
                if deadline.expired:
                    raise
                if stream is not None and stream.proved:
                    stream.catch_up()
                if self._coordinator_timeout is not None and self.agent.unheard > self._coordinator_timeout:
                    raise RunEnded(f"nobody answers at {self.agent.address} any more", well=False) from None
            else:
                return

    def leave_early(self) -> None:
        """At `close`, say that training goes on without this worker."""
        self._early = True

    @property
    def leaves_early(self) -> bool:
        return self._early

    def close(self, leave: bool = True, held: tuple[int, str] = (0, "")) -> None:
        """Say goodbye, or leave without a message, if the launcher is to report why."""
        self.agent.close(leave, early=self._early, held=held)

    @property
    def waiting(self) -> bool:  # type: ignore[override]
        return self.view.generation == 0

    @property
    def proposed(self) -> bool:  # type: ignore[override]
        return self.agent.proposed

    @property
    def proposed_plan(self) -> str:  # type: ignore[override]
        return self.agent.proposed_plan

    @property
    def install(self) -> InstallView:
        """Return the message that installed the agent's view."""
        install = self.agent.installed
        assert install is not None
        return install

    @property
    def committed_view(self) -> MembershipView:
        # Steps may be made while an operation is under way. If the view ends then, agents may count the operation as
        # complete while members are in different steps; all must still share the samples of each step alike.
        return self.agent.entered_view if self._inside else self.agent.committed_view

    @property
    def newest_view(self) -> MembershipView:
        return self.agent.view

    @property
    def disturbed(self) -> bool:
        return self.agent.disturbed or self.agent.view.generation != self.view.generation

    def _left(self, generation: int) -> bool:
        """Leave the view, in the agent's thread; return whether all parts of the operation have arrived."""
        self._transport.leave_view(generation)
        return self._holds()

    def _look(self) -> None:
        """Take over the agent's view, in the training thread, and tell the listeners if it is new."""
        install = self.install
        if install.view.generation != self.view.generation:
            self.view, self.fresh = install.view, install.fresh if install.donor else ()
            self.streamed, self.gives = install.streamed, install.donor == self.member
            self.listeners.notify(self.view, self.fresh)

    def enter(self, holds: Callable[[], bool]) -> None:
        self._await_eviction()  # one that broke the protocol must not spoil the next operation too
        self._holds = holds
        self._number, self._inside = self.agent.enter(Deadline.after(self.seconds)), True
        self._look()

    def hold(self) -> None:
        """Note, over links, that this worker holds the result."""
        if self.agent.hold() is None:
            raise ViewEnded("the members change")

    def arrived(self) -> None:
        if self._completing and self._holds():
            self._transport.announce_result()

    def complete(self) -> None:
        self._transport.confirm_result()
        deadline = Deadline.after(self.seconds)
        while self._transport.all_stay():
            if self.agent.complete(self.view):
                self._inside = False
                return
            if self.disturbed:
                break
            self.agent.wait_settled(deadline)  # the lease has ended, so all wait for the coordinator
        raise ViewEnded("the members change")

    def settle(self) -> bool:
        # The transport of this run cannot go on without a member, so the launcher goes back to a checkpoint.
        if self.rigid:
            raise PeerLost(f"{self.member} stops: a worker is lost, and {self.rigid}")
        deadline = Deadline.after(self.seconds)
        self.agent.wait_settled(deadline)
        while self.agent.view.generation == self.view.generation:  # a peer heard of the new view first
            time.sleep(PAUSE)
            self.agent.wait_settled(deadline)
            if deadline.expired:
                raise PeerLost(f"{self.member} waited {self.seconds:.0f} s for a new view of the members")
        self._inside = False
        self._look()
        # agents may have counted the operation as complete while the view changed
        return self.agent.applied >= self._number

    def remote(self, member: str) -> bool:
        """Return whether a member of the view runs on another machine than the run began on."""
        infos = zip(self.install.view.members, self.install.infos, strict=False)
        return any(info.remote for name, info in infos if name == member)

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        """Have a remote worker evicted, and wait for the view without it; raise the error if it is the run's own."""
        self.distrust(member, error)
        deadline = Deadline.after(self.seconds)
        while not self.disturbed:
            self.agent.check()
            if deadline.expired:
                raise error
            time.sleep(PAUSE)
        raise ViewEnded(f"{member} breaks the protocol: {error}")

    def distrust(self, member: str, error: ShoalError) -> None:
        if not self.remote(member) or member == self.member:
            raise error
        self.agent.reports.accuse(member, str(error))
        self._accused = (self.view.generation, Deadline.after(min(EVICTION, self.seconds)))

    def _await_eviction(self) -> None:
        """Wait until an accused member is out, as long as the coordinator may still believe this worker."""
        generation, deadline = self._accused
        while generation == self.view.generation and not self.disturbed and not deadline.expired:
            self.agent.check()
            time.sleep(PAUSE)

    def request_plan(self, plan: str) -> None:
        # The coordinator ignores remote workers; the run's own workers run the same script, and ask too.
        if not self.agent.info.remote:
            self.agent.reports.request_plan(plan, self.agent.view)  # which may be ahead of `self.view`

    @property
    def leases(self) -> LeaseClient | None:
        return self.agent.leases

    def begin(self, step: int, admits: bool = True) -> bool:
        begun = self.agent.begin(step, Deadline.after(self.seconds), admits)
        self._look()
        return begun
