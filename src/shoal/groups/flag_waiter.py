"""Waiting on flags in shared memory: spin, then yield, then sleep, with a deadline.

The fences here order data before the flags that announce it.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.core.clock import Deadline, now
from shoal.core.errors import DeadlineError, PeerLost, ViewEnded
from shoal.hosts.fences import fence
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.membership.session import FixedSession

Flags = npt.NDArray[np.int64]

# Measured in turns of the interpreter, not seconds: reading a clock would take longer than a poll.
SPINS = 30
"""Polls without giving up the core, because a peer in the same step is usually microseconds away."""
YIELDS = 300
"""Polls that let another process run in between, which helps with more workers than cores."""
SLEEP = 5e-5
LONGEST_SLEEP = 1e-3
"""Seconds of a sleep, at first and at most: a wait may end so much later than its flag is set."""
LOOK_AROUND = 0.25
"""Seconds between two checks whether the peers are alive."""


class WaitedSession(Protocol):
    """What a wait asks of a session."""

    @property
    def elastic(self) -> bool: ...

    @property
    def disturbed(self) -> bool: ...


class FlagWaiter:
    """The waits of one worker on rows of flags, one flag per slot, of which those of members count."""

    def __init__(self, board: StatusBoard, slot: int, seconds: float, session: WaitedSession | None = None) -> None:
        self.board, self.slot, self.seconds = board, slot, seconds
        self.session: WaitedSession = session or FixedSession(slot, slot + 1)
        self._members: npt.NDArray[np.int64] | None = None

    def wait_for(self, members: Sequence[int] | None) -> None:
        """Wait only for the flags of these slots from now on; None: for all, which is faster."""
        self._members = None if members is None else np.array(members)

    def _lowest(self, row: Flags) -> int:
        return int(row.min() if self._members is None else row[self._members].min())

    def until(self, row: Flags, number: int) -> None:
        """Return when every member's flag in `row` has reached `number`; ViewEnded if the members change before."""
        for look in range(SPINS + YIELDS):
            if self._lowest(row) >= number:
                break
            if look >= SPINS:
                os.sched_yield()
        else:
            self._long(row, number)
        fence()

    def reached(self, row: Flags, number: int) -> bool:
        """Return whether `until` would return at once."""
        if self._lowest(row) < number:
            return False
        fence()
        return True

    def publish(self, row: Flags, number: int) -> None:
        """Set this worker's flag. A process that sees it also sees everything this worker wrote before."""
        fence()
        row[self.slot] = number

    def _long(self, row: Flags, number: int) -> None:
        # Not before: most waits end while `until` polls, and need no clock.
        deadline = Deadline.after(self.seconds)
        looked, pause = now(), SLEEP
        while self._lowest(row) < number:
            if self.session.disturbed:
                raise ViewEnded("the members change")
            lost = self.board.aborted
            if lost is not None:
                raise PeerLost(f"worker {self.slot} stops: worker {lost} is lost")
            if now() - looked > LOOK_AROUND:
                looked = now()
                members = np.arange(len(row)) if self._members is None else self._members
                behind = members[row[members] < number]
                self._look_around(behind.tolist(), deadline)
                self._look_for_strays(behind.tolist(), row, number)
            time.sleep(pause)
            # Grows slowly: a wait that is ten times longer than expected costs little CPU, and ends little later.
            pause = min(pause * 1.2, LONGEST_SLEEP)

    def _look_for_strays(self, missing: list[int], row: Flags, number: int) -> None:
        """Raise if a peer waits in a later synchronization: it will never come to this one."""
        strays = [peer for peer in missing if self.board.ahead(self.slot, peer)]
        for peer in (peer for peer in strays if row[peer] < number):  # read again, because it may have come just now
            raise PeerLost(
                f"worker {self.slot} waits for worker {peer}, which has ended its epoch after step "
                f"{int(self.board.read(peer)['step'])}; all workers must make the same number of steps"
            )

    def _look_around(self, missing: list[int], deadline: Deadline) -> None:
        # In an elastic run the launcher and the coordinator notice a lost peer.
        for peer in [] if self.session.elastic else missing:
            row = self.board.read(peer)
            if row["state"] == WorkerState.ended:
                raise PeerLost(
                    f"worker {self.slot} waits for worker {peer}, which has ended after step {int(row['step'])}; "
                    "all workers must make the same number of steps"
                )
            # A pid of 0 is a slot whose process has not come yet.
            if row["pid"] and not _alive(int(row["pid"])):
                raise PeerLost(f"worker {self.slot} stops: {self.board.describe(peer)}, is gone")
        if deadline.expired:
            suspects = "; ".join(self.board.describe(peer) for peer in missing)
            raise DeadlineError(
                f"worker {self.slot} waited {deadline.budget:.0f} s for {suspects}; "
                "raise SHOAL_DEADLINE (seconds) if its step is really that long"
            )


def _alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or a system without /proc: it exists, and no more can be known
        return True
