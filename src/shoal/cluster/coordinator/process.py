"""The coordinator's loop: hear, decide, write, tell. Everything it decides is in `membership.coordinator`.

    wait (≤ 0.1 s) ── letters: envelope, register ── hear ─┐
                   ── launcher: Gone, Stop ── hear ────────┼─ effects in order: Write = log + fsync, Tell = send
                   ── the clock ── tick ───────────────────┘

Killed at any moment it has told nothing that its log does not hold, so it can be started again on log and address.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.cluster.coordinator.channel import Channel, Ready, Stop
from shoal.cluster.coordinator.door import Door, Letter
from shoal.cluster.coordinator.grants import Granted, Grants, Welcome
from shoal.cluster.coordinator.register import Bound, Register
from shoal.cluster.coordinator.wal import Wal
from shoal.cluster.membership.coordinator import Coordinator
from shoal.cluster.membership.credentials import Lock
from shoal.cluster.membership.effects import Effect, Write
from shoal.cluster.membership.envelope import ASKING, Envelope, Mismatch, Unreadable, asks
from shoal.cluster.membership.invitation import Ask
from shoal.cluster.membership.log import Entry, Installed, Lost
from shoal.cluster.membership.messages import LONGEST_TEXT, Ended, Gone, Hello, Leave, Order, Refused, Report
from shoal.cluster.membership.rules import Rules
from shoal.core.clock import Deadline, now

TICK = 0.1
GOODBYE = 3.0
"""Seconds in which those of other machines may hear that the run has ended."""


@dataclass(frozen=True)
class Setup:
    """What a coordinator is started with, and started again."""

    run: str
    address: str
    """`ipc://FILE` in a folder of mode 0700, or `tcp://HOST:PORT` with a lock."""
    log: Path
    rules: Rules = field(default_factory=Rules)
    lock: Lock | None = None
    outlives: bool = False
    """Whether it goes on when its launcher is gone (it then ends by SIGTERM)."""
    welcome: Welcome | None = None
    """Whom it lets in from other machines; None: nobody."""


class Process:
    """Made and run in the coordinator's own process."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        self.setup, self.channel = setup, channel
        self.stopping = self._orphaned = False
        self.wal = Wal(setup.log)
        self.register = Register(setup.lock.allowed if setup.lock is not None else None)
        entries: list[Entry] = []
        for entry in self.wal.past:
            if isinstance(entry, Bound):
                self.register.add(entry)
            elif not isinstance(entry, Granted):
                entries.append(entry)
        self.machine = Coordinator(setup.rules, now(), entries, self.register.owner)
        self.grants = Grants(setup.welcome, self.machine.memory.lost)
        for entry in self.wal.past:
            if isinstance(entry, Granted):
                self.grants.add(entry, now())
        self._ended: Ended | None = None
        self.envelope = Envelope(setup.run)
        self.door = Door(setup.address, setup.lock)
        self.door.watch(channel.fileno())
        self._where: dict[str, bytes] = {}

    def run(self) -> None:
        """Serve until told to stop."""
        self.channel.send(Ready(address=self.door.address))
        try:
            while not self.stopping:
                self.door.wait(TICK)
                self._listen_to_launcher()
                for letter in self.door.letters():
                    self._open(letter)
                for member in self.grants.late(self.machine.seats, now()):
                    self._do(self.machine.hear(Gone(member=member, reason="it never came"), now()))
                self._do(self.machine.tick(now()))
            self._say_goodbye()
        finally:
            self.door.close()
            self.wal.close()
            # a launcher that was killed cannot do it; one that lives starts another coordinator here
            if self.setup.address.startswith("ipc://") and self._ended is not None:
                file = Path(self.setup.address.removeprefix("ipc://"))
                file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    file.parent.rmdir()

    def _listen_to_launcher(self) -> None:
        if self._orphaned:
            return
        for said in self.channel.receive():
            if isinstance(said, Gone):
                self._do(self.machine.hear(said, now()))
            elif isinstance(said, Stop):
                self.stopping, self._ended = True, Ended(well=said.well, reason=said.reason)
        if self.channel.over:
            self._orphaned = True
            self.door.unwatch(self.channel.fileno())
            self.stopping = self.stopping or not self.setup.outlives
            self._ended = self._ended or Ended(well=False, reason="its launcher is gone")

    def _say_goodbye(self) -> None:
        """Who is still here need not wait; unless it is this process alone that ends, and another follows."""
        self._listen_to_launcher()
        seats, deadline = self.machine.seats, Deadline.after(GOODBYE)
        while self._ended is not None:
            for member in seats:
                self._tell(member, self._ended)
            if deadline.expired or not any(seat.plate.guest for seat in seats.values()):
                return
            # who closes a connection without reading what came may take back what was said last
            self.door.wait(TICK)
            for letter in self.door.letters():
                self._let_go(letter)

    def _let_go(self, letter: Letter) -> None:
        with contextlib.suppress(Unreadable, Mismatch):
            said = self.envelope.report(letter.frames)
            seats = self.machine.seats
            if isinstance(said, Leave) and not self.register.objection(said, letter.key, seats, len(seats)):
                seats.pop(said.member, None)

    def _open(self, letter: Letter) -> None:
        """A letter that is not in order changes nothing; one of Shoal's own is told why."""
        try:
            if asks(letter.frames):
                self._answer(ASKING.ask(letter.frames), letter)
                return
            report = self.envelope.report(letter.frames)
        except Unreadable:
            return
        except Mismatch as error:
            self._refuse(letter, str(error))
            return
        seats = self.machine.seats
        objection = self.register.objection(report, letter.key, seats, len(seats))
        objection = objection or self.grants.objection(report, letter.key)
        if not objection:
            self._do(self._hear(report, letter))
        elif isinstance(report, Hello):
            self._refuse(letter, objection)

    def _hear(self, report: Report, letter: Letter) -> Sequence[Effect]:
        """What follows from a report; one that cannot be handled costs its sender its membership, and nobody else."""
        bound = self.register.binds(report, letter.key)
        if bound is not None:
            self.wal.append(bound)
        if (
            isinstance(report, Hello)
            or report.member in self.machine.seats
            or report.member in self.machine.memory.lost
        ):
            self._where[report.member] = letter.sender  # of others nothing is kept, however many there are
        try:
            return self.machine.hear(report, now())
        except Exception as error:  # noqa: BLE001  (whatever it is, this member's report was the cause)
            kind = type(report).__name__
            return self.machine.suspect(report.member, f"its {kind} could not be handled: {error!r}", now())

    def _answer(self, ask: Ask, letter: Letter) -> None:
        """One that may join is told what the run is; the ids it gets are written down before."""
        for member in self.grants.abandoned(ask, letter.key, self.machine.seats, now()):
            self._do(self.machine.hear(Gone(member=member, reason="its machine joins again"), now()))
        if ask.look and self.setup.welcome is not None and not self.grants.refusal(ask, letter.key):
            self.door.send(letter.sender, ASKING.seal(self.setup.welcome.brief))
            return
        told = self.grants.told(ask, letter.key)
        for member in self.grants.replaced(ask, letter.key) if not told else ():
            self._do(self.machine.hear(Gone(member=member, reason="its launcher lost it"), now()))
        refusal = self.grants.refusal(ask, letter.key)
        if not refusal and not told:
            for granted in self.grants.choose(ask, letter.key):
                self.wal.append(granted)
                self.grants.add(granted, now())
                told.append(granted.member)
        if refusal or not told or self.setup.welcome is None:
            self._refuse(letter, refusal or "all seats are taken; join when some are free", ASKING)
        else:
            brief = msgspec.structs.replace(self.setup.welcome.brief, members=tuple(told))
            self.door.send(letter.sender, ASKING.seal(brief))

    def _refuse(self, letter: Letter, reason: str, envelope: Envelope | None = None) -> None:
        refused = Refused(reason=reason[:LONGEST_TEXT])
        self.door.send(letter.sender, (envelope or self.envelope).seal(refused))

    def _tell(self, member: str, order: Order) -> None:
        if member in self._where:
            self.door.send(self._where[member], self.envelope.seal(order))

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                self.wal.append(effect.entry)
                if isinstance(effect.entry, Lost | Installed):
                    self.channel.send(effect.entry)
            else:
                self._tell(effect.member, effect.order)
