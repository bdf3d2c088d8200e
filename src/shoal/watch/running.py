"""The runs that live now, and what each of their workers does: notices and boards, read without disturbing anybody."""

import os
import time

import msgspec

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.launch.live_runs import NoticeSlot, RunNotice, live


class RunningMember(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a live run."""

    worker: int
    rank: int | None
    """Among those that train now; None for one that does not."""
    host: str
    pid: int
    state: str
    """What it does, or: stopped, gone, ended, lost, starting again, quarantined."""
    step: int
    last_progress: float | None
    """Seconds since it last began to do something else; None if it never did anything."""
    starts: int
    reason: str
    """Of its last loss."""


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """A process of a run that does not train."""

    pid: int
    state: str


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """One live run."""

    run: str
    dir: str
    plan: str
    pid: int
    """Of its launcher."""
    state: str
    """running, stopping, or stopped (the launcher is frozen)."""
    seconds: float
    step: int
    lab: str
    attempt: int
    coordinator: CoordinatorStatus | None
    members: list[RunningMember]


def running() -> list[LiveRun]:
    """The live runs of this user on this host, oldest first."""
    return [look(notice) for notice in live()]


def look(notice: RunNotice) -> LiveRun:
    board = notice.read_board()
    members = [_member(slot, notice, board) for slot in notice.slots]
    state = notice.launcher.state
    coordinator = notice.coordinator
    return LiveRun(
        run=notice.run,
        dir=notice.dir,
        plan=notice.plan,
        pid=notice.launcher.pid,
        state="stopping" if notice.stopping and state == "running" else state,
        seconds=max(0.0, time.time() - notice.since),
        step=max((member.step for member in members), default=0),
        lab=notice.lab,
        attempt=notice.attempt,
        coordinator=CoordinatorStatus(coordinator.pid, coordinator.state) if coordinator is not None else None,
        members=members,
    )


def _member(slot: NoticeSlot, notice: RunNotice, board: StatusBoard | None) -> RunningMember:
    row = board.read(slot.worker) if board is not None else {}
    known = int(row.get("pid", 0)) == slot.process.pid  # else the row is still that of the worker before it
    alive = slot.process.state
    state = WorkerState(int(row["state"])).name if known else "starting"
    return RunningMember(
        worker=slot.worker,
        rank=notice.members.index(slot.worker) if slot.worker in notice.members and not slot.fate else None,
        host=slot.host,
        pid=slot.process.pid,
        # A process that is stopped or gone leaves its last word on the board, so the process itself is asked first.
        state=slot.fate or (state if alive == "running" else alive),
        step=int(row.get("step", 0)),
        last_progress=round(max(0.0, now() - row["seen"]), 3) if row.get("seen") else None,
        starts=slot.starts,
        reason=slot.reason,
    )


def shown_folder(path: str) -> str:
    """As a reader would write it."""
    short = os.path.relpath(path)
    return short if not short.startswith("..") else path
