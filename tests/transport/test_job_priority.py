"""Runs that share a link, in virtual time: the shortest first, none starves, the link is never idle for nothing."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import begin, meshes, numbers

from shoal.core.errors import UsageError
from shoal.hosts.job_board import JobEntry
from shoal.hosts.status_board import WorkerState
from shoal.transport.job_priority import SHARE, JobPriority, read_priority
from shoal.transport.messages import CHUNK

RATE, WINDOW, TICK = 1.25e6, 256 << 10, 0.005


class VirtualJobs(dict):
    """The board, of one moment for all."""

    def board(self, name: str) -> "VirtualBoard":
        return VirtualBoard(self, name)


class VirtualBoard:
    """One run's view of it."""

    def __init__(self, jobs: VirtualJobs, name: str) -> None:
        self.jobs, self.name = jobs, name

    def write(self, left: float, is_busy: bool) -> None:
        self.jobs[self.name] = JobEntry(self.name, left, is_busy)

    def read(self) -> list[JobEntry]:
        return [entry for name, entry in self.jobs.items() if name != self.name]

    def close(self) -> None:
        self.jobs.pop(self.name, None)


class VirtualRun:
    """`steps` of `compute` seconds, each followed by `chunks` over the link."""

    def __init__(self, name: str, steps: int, chunks: int, compute: float, jobs: VirtualJobs | None) -> None:
        self.name, self.steps, self.chunks, self.compute = name, steps, chunks, compute
        self.priority = JobPriority(name, jobs.board(name), self.count_left) if jobs is not None else None
        self.waiting = self.under_way = 0
        self.until, self.ended, self.longest, self.last = compute, 0.0, 0.0, 0.0

    def count_left(self) -> float:
        return float(self.steps * self.chunks * CHUNK)

    def act(self, now: float, link: deque["VirtualRun"]) -> None:
        if self.until and now >= self.until:
            self.until, self.waiting, self.last = 0.0, self.chunks, now
        if self.priority is not None:
            self.priority.look(now, self.waiting > 0, self.waiting + self.under_way > 0)
        while self.waiting and self.under_way + CHUNK <= WINDOW and self._may_send(now):
            self.waiting, self.under_way = self.waiting - 1, self.under_way + CHUNK
            link.append(self)
            if self.priority is not None:
                self.priority.sent(now, CHUNK, RATE)

    def _may_send(self, now: float) -> bool:
        return self.priority is None or self.priority.may_send(now, self.under_way, RATE)

    def arrived(self, now: float) -> None:
        self.under_way -= CHUNK
        self.longest, self.last = max(self.longest, now - self.last), now
        if not self.waiting and not self.under_way:
            self.steps -= 1
            self.until = now + self.compute if self.steps else 0.0
            self.ended = 0.0 if self.steps else now
            if self.ended and self.priority is not None:
                self.priority.others.close()


def share_link(runs: list[VirtualRun]) -> float:
    """Let them all end; return the seconds in which the link was idle though something waited."""
    link: deque[VirtualRun] = deque()
    now, idle, budget = 0.0, 0.0, 0.0
    while not all(run.ended for run in runs):
        for run in runs:
            if not run.ended:
                run.act(now, link)
        if not link and any(run.waiting for run in runs):
            idle += TICK
        budget = budget + RATE * TICK if link else 0.0
        while link and budget >= CHUNK:
            budget -= CHUNK
            link.popleft().arrived(now)
        now += TICK
        assert now < 10_000
    return idle


def mean_end(make: Callable[[VirtualJobs | None], list[VirtualRun]], by_priority: bool) -> tuple[float, float]:
    runs = make(VirtualJobs() if by_priority else None)
    idle = share_link(runs)
    return sum(run.ended for run in runs) / len(runs), idle


def test_mlnet_two_jobs_on_one_link_end_a_fifth_sooner_on_average() -> None:
    def make(jobs: VirtualJobs | None) -> list[VirtualRun]:
        return [VirtualRun("a", 20, 16, 0.02, jobs), VirtualRun("b", 24, 16, 0.02, jobs)]

    (fair, _), (shortest, idle) = mean_end(make, False), mean_end(make, True)
    assert shortest <= 0.8 * fair, (shortest, fair)
    assert idle <= 0.01 * shortest


runs_strategy = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 12), st.floats(0.01, 0.5)), min_size=1, max_size=4)


@given(runs_strategy)
@settings(max_examples=40, deadline=None)
def test_no_run_starves_and_the_link_is_never_idle_while_something_waits(shapes: list[tuple[int, int, float]]) -> None:
    jobs = VirtualJobs()
    runs = [VirtualRun(f"{number}", *shape, jobs) for number, shape in enumerate(shapes)]
    idle = share_link(runs)
    end = max(run.ended for run in runs)
    assert idle <= 2 * TICK * sum(run.chunks for run in runs) * 8, "what waits for a look of its own"
    # a run that stands back still has its floor; what others have under way may be before each of its chunks
    bound = SHARE * CHUNK / RATE + len(runs) * WINDOW / RATE + 10 * TICK
    assert all(run.longest <= bound for run in runs), [run.longest for run in runs]
    work = sum(shape[0] * shape[1] * CHUNK / RATE + shape[0] * shape[2] for shape in shapes)
    assert end <= 1.2 * work + 1.0


def test_a_run_that_ends_or_is_killed_frees_the_link_at_the_next_look() -> None:
    jobs = VirtualJobs()
    short, long = (
        JobPriority(name, jobs.board(name), lambda left=left: left) for name, left in (("s", 1.0), ("l", 2.0))
    )
    short.look(0.0, True, True)
    long.look(0.0, True, True)
    long.sent(0.0, CHUNK, RATE)
    assert long.stands_back_for == "s"
    assert not long.may_send(0.1, 0, RATE)
    del jobs["s"]
    long.look(0.1, True, True)
    assert long.may_send(0.1, WINDOW, RATE)
    assert long.seconds == {"s": pytest.approx(0.1)}
    assert long.stands_back_for == ""


def test_of_two_with_the_same_left_one_goes_first_and_unknown_lengths_go_last() -> None:
    jobs = VirtualJobs()
    lefts = {"a": 5.0, "b": 5.0, "c": math.inf}
    made = {name: JobPriority(name, jobs.board(name), lambda left=left: left) for name, left in lefts.items()}
    for _ in range(2):
        for priority in made.values():
            priority.look(0.0, True, True)
    assert {name: priority.stands_back_for for name, priority in made.items()} == {"a": "", "b": "a", "c": "a"}


def test_while_a_shorter_run_computes_little_is_under_way() -> None:
    jobs = VirtualJobs()
    jobs["s"] = JobEntry("s", 1.0, True)
    long = JobPriority("l", jobs.board("l"), lambda: 2.0)
    long.look(0.0, True, True)
    jobs["s"] = JobEntry("s", 1.0, False)
    long.look(0.01, True, True)
    assert long.may_send(0.01, 0, RATE)
    assert not long.may_send(0.01, CHUNK, RATE)
    assert long.may_send(1.0, CHUNK, RATE)


@pytest.mark.parametrize(("text", "steps"), [("shortest", 0), ("shortest:2000", 2000)])
def test_priorities_are_read(text: str, steps: int) -> None:
    assert read_priority(text) == steps


@pytest.mark.parametrize("text", ["fair", "shortest:0", "shortest:-1", "shortest:x", "shortest:1e3", ""])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no priority; write 'shortest'"):
        read_priority(text)


def test_deadlines_wait_as_long_as_another_run_goes_first() -> None:
    """Twenty chunks at the floor take minutes; the wait outlives its deadline, and ends once the other run has."""
    jobs, tensors = VirtualJobs(), numbers(2, 300_000)
    jobs["shorter"] = JobEntry("shorter", 1.0, True)
    with meshes(2) as made:
        for mesh in made:
            mesh.set_priority(JobPriority(f"{mesh.rank}", jobs.board(f"{mesh.rank}"), lambda: math.inf))
        tasks = begin(made, tensors)
        threading.Timer(3.0, jobs.pop, ["shorter"]).start()
        began = time.monotonic()
        for mesh, (task, result) in zip(made, tasks, strict=True):
            mesh.wait(task, 1.5)
            assert torch.equal(result.double(), torch.stack([tensor.double() for tensor in tensors]).sum(0))
        assert time.monotonic() - began >= 2.5
        assert all(mesh.priority.seconds["shorter"] > 0.5 for mesh in made)


def test_a_peer_that_says_it_stands_back_is_not_believed_by_runs_without_priority() -> None:
    with meshes(2) as made:
        made[0].link(1).state = WorkerState.standing_back
        assert not made[0]._stands_back()
        made[0].set_priority(JobPriority("0", VirtualJobs().board("0"), lambda: 1.0))
        made[0].link(1).state = WorkerState.standing_back
        assert made[0]._stands_back()
