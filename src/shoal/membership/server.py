"""The coordinator's process: a loop that receives reports, has `membership.coordinator` decide, writes and sends."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.core.clock import Deadline, now
from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.coordinator_socket import CoordinatorMessage, CoordinatorSocket
from shoal.membership.credentials import ServerCredentials
from shoal.membership.envelope import ASKING, MessageEnvelope, ProtocolMismatch, UnreadableMessage, asks
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy, SlotGranted, SlotGrants
from shoal.membership.invitation import RunQuery
from shoal.membership.key_register import KeyBound, KeyRegister
from shoal.membership.launcher_channel import (
    CoordinatorReady,
    ExpectRemote,
    LauncherChannel,
    ReplicaHeld,
    StopCoordinator,
    SwitchPlan,
)
from shoal.membership.log_entries import AskLauncher, Effect, Entry, MemberLost, ViewInstalled, WriteEntry
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared
from shoal.membership.protocol import (
    LONGEST_TEXT,
    JoinRefused,
    JoinRequest,
    LeaveRequest,
    Order,
    ProcessExited,
    Report,
    RunOver,
)
from shoal.membership.wal import CoordinatorLog

TICK = 0.1
"""Seconds between two ticks of the state machine when nothing arrives."""
GOODBYE = 3.0
"""Seconds in which workers of other machines may hear that the run has ended."""


@dataclass(frozen=True)
class CoordinatorSetup:
    """What a coordinator is started and restarted with."""

    run: str
    address: str
    """`ipc://FILE` in a folder of mode 0700, or `tcp://HOST:PORT` with a lock."""
    log: Path
    rules: MembershipRules = field(default_factory=MembershipRules)
    lock: ServerCredentials | None = None
    outlives: bool = False
    """Whether it goes on when its launcher is gone, until SIGTERM."""
    welcome: JoinPolicy | None = None
    """Admits workers of other machines; None if none may join."""


class CoordinatorServer:
    """Serves one run, in a process of its own."""

    def __init__(self, setup: CoordinatorSetup, channel: LauncherChannel) -> None:
        self.setup, self.channel = setup, channel
        self.stopping = self._orphaned = False
        self.wal = CoordinatorLog(setup.log)
        self.register = KeyRegister(setup.lock.allowed if setup.lock is not None else None)
        entries: list[Entry] = []
        for entry in self.wal.past:
            if isinstance(entry, KeyBound):
                self.register.add(entry)
            elif not isinstance(entry, SlotGranted):
                entries.append(entry)
        # The state machine knows nothing of keys: their bindings are taken out of the log here.
        self.machine = MembershipCoordinator(setup.rules, now(), entries, self.register.owner)
        self.grants = SlotGrants(setup.welcome, self.machine.memory.lost)
        for entry in self.wal.past:
            if isinstance(entry, SlotGranted):
                self.grants.add(entry, now())
        self._ended: RunOver | None = None
        self.envelope = MessageEnvelope(setup.run)
        self.socket = CoordinatorSocket(setup.address, setup.lock)
        self.socket.watch(channel.fileno())
        # The connection that each member was last heard on; it changes when a member reconnects.
        self._where: dict[str, bytes] = {}

    def run(self) -> None:
        """Serve until told to stop."""
        self.channel.send(CoordinatorReady(address=self.socket.address))
        try:
            while not self.stopping:
                self.socket.wait(TICK)
                self._listen_to_launcher()
                for message in self.socket.messages():
                    self._open(message)
                # A promised slot that no worker takes is freed, or the run would be full of no one.
                for member in self.grants.late(self.machine.roster.statuses, now()):
                    self._do(self.machine.hear(ProcessExited(member=member, reason="it never came"), now()))
                self._do(self.machine.tick(now()))
            self._say_goodbye()
        finally:
            self.socket.close()
            self.wal.close()
            # The launcher may have been killed, so this process removes the socket; but not when it fails itself,
            # because the launcher then starts another coordinator at the same address.
            if self.setup.address.startswith("ipc://") and self._ended is not None:
                file = Path(self.setup.address.removeprefix("ipc://"))
                file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    file.parent.rmdir()

    def _listen_to_launcher(self) -> None:
        if self._orphaned:
            return
        for said in self.channel.receive():
            if isinstance(said, ProcessExited):
                self._do(self.machine.hear(said, now()))
            elif isinstance(said, ExpectRemote):
                self._do(self.machine.expect(said.count, now()))
            elif isinstance(said, SwitchPlan):
                self._do(self.machine.switch(said.plan, now()))
            elif isinstance(said, PlanPrepared | PlanUnprepared):
                self._do(self.machine.hear_launcher(said, now()))
            elif isinstance(said, StopCoordinator):
                self.stopping, self._ended = True, RunOver(well=said.well, reason=said.reason)
        # The launcher's death closes its end; without `outlives` this process must not be left behind.
        if self.channel.over:
            self._orphaned = True
            self.socket.unwatch(self.channel.fileno())
            self.stopping = self.stopping or not self.setup.outlives
            self._ended = self._ended or RunOver(well=False, reason="its launcher is gone")

    def _say_goodbye(self) -> None:
        """Tell the remaining members that the run is over, unless only this process ends and another follows."""
        self._listen_to_launcher()
        statuses, deadline = self.machine.roster.statuses, Deadline.after(GOODBYE)
        while self._ended is not None:
            for member in statuses:
                self._tell(member, self._ended)
            if deadline.expired or not any(status.info.remote for status in statuses.values()):
                return
            # Closing a TCP connection with unread data resets it, which could discard the last message sent.
            self.socket.wait(TICK)
            for message in self.socket.messages():
                self._let_go(message)

    def _let_go(self, message: CoordinatorMessage) -> None:
        with contextlib.suppress(UnreadableMessage, ProtocolMismatch):
            said = self.envelope.report(message.frames)
            statuses = self.machine.roster.statuses
            if isinstance(said, LeaveRequest) and not self.register.objection(
                said, message.key, statuses, len(statuses)
            ):
                self._note_held(said)
                statuses.pop(said.member, None)

    def _note_held(self, goodbye: LeaveRequest) -> None:
        """Pass on what a remote worker held at its end; the launcher reads the records of its own workers itself."""
        if goodbye.fingerprint and self.machine.roster.is_remote(goodbye.member):
            step, found = goodbye.step, goodbye.fingerprint
            self.channel.send(ReplicaHeld(member=goodbye.member, step=step, fingerprint=found))

    def _open(self, message: CoordinatorMessage) -> None:
        """Take in a message. An invalid one changes nothing; if it comes from another Shoal, its sender is told why."""
        try:
            if asks(message.frames):
                self._answer(ASKING.ask(message.frames), message)
                return
            report = self.envelope.report(message.frames)
        except UnreadableMessage:
            return
        except ProtocolMismatch as error:
            self._refuse(message, str(error))
            return
        statuses = self.machine.roster.statuses
        objection = self.register.objection(report, message.key, statuses, len(statuses))
        objection = objection or self.grants.objection(report, message.key)
        if not objection:
            self._do(self._hear(report, message))
        elif isinstance(report, JoinRequest):
            self._refuse(message, objection)

    def _hear(self, report: Report, message: CoordinatorMessage) -> Sequence[Effect]:
        """Return the effects of a report. One that cannot be handled evicts its sender, and harms no other member."""
        bound = self.register.binds(report, message.key)
        if bound is not None:
            self.wal.append(bound)  # the key is this member's alone from here on, also after a restart
        if (
            isinstance(report, JoinRequest)
            or report.member in self.machine.roster.statuses
            or report.member in self.machine.memory.lost
        ):
            self._where[report.member] = message.sender  # only of members, so that strangers cannot fill the table
        if isinstance(report, LeaveRequest):
            self._note_held(report)
        try:
            return self.machine.hear(report, now())
        except Exception as error:  # noqa: BLE001  (this member's report was the cause, whatever the error)
            kind = type(report).__name__
            return self.machine.suspect(report.member, f"its {kind} could not be handled: {error!r}", now())

    def _answer(self, ask: RunQuery, message: CoordinatorMessage) -> None:
        """Answer a machine that wants to join with the run's description; the ids it gets are logged first."""
        if often := self.grants.too_often(ask, message.key, now()):
            self._refuse(message, often, ASKING)
            return
        for member in self.grants.abandoned(ask, message.key, self.machine.roster.statuses, now()):
            self._do(self.machine.hear(ProcessExited(member=member, reason="its machine joins again"), now()))
        if ask.look and self.setup.welcome is not None and not self.grants.refusal(ask, message.key):
            self.socket.send(message.sender, ASKING.seal(self.setup.welcome.brief))
            return
        told = self.grants.told(ask, message.key)
        for member in self.grants.replaced(ask, message.key) if not told else ():
            self._do(self.machine.hear(ProcessExited(member=member, reason="its launcher lost it"), now()))
        refusal = self.grants.refusal(ask, message.key)
        if not refusal and not told:
            for granted in self.grants.choose(ask, message.key, now()):
                # before the answer leaves: a restarted coordinator must not give the slot away again
                self.wal.append(granted)
                self.grants.add(granted, now())
                told.append(granted.member)
        if refusal or not told or self.setup.welcome is None:
            later = self.grants.may_soon(ask, message.key)
            self._refuse(message, refusal or "all slots are taken; join when some are free", ASKING, later)
        else:
            founding = self.machine.founding
            brief = msgspec.structs.replace(self.setup.welcome.brief, members=tuple(told), founding=founding)
            self.socket.send(message.sender, ASKING.seal(brief))

    def _refuse(
        self, message: CoordinatorMessage, reason: str, envelope: MessageEnvelope | None = None, later: bool = False
    ) -> None:
        refused = JoinRefused(reason=reason[:LONGEST_TEXT], later=later)
        self.socket.send(message.sender, (envelope or self.envelope).seal(refused))

    def _tell(self, member: str, order: Order) -> None:
        if member in self._where:
            self.socket.send(self._where[member], self.envelope.seal(order))

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WriteEntry):
                # before any message of it leaves: no member may act on an entry that a crash could undo
                self.wal.append(effect.entry)
                if isinstance(effect.entry, MemberLost | ViewInstalled):
                    self.channel.send(effect.entry)
            elif isinstance(effect, AskLauncher):
                self.channel.send(effect.question)
            else:
                self._tell(effect.member, effect.order)
