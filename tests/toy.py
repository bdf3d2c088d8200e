"""Members that "train" numbered operations through shared memory, as processes, under a real coordinator.

An operation gathers one number of every member; a chain of digests tells whether two members did the same ones in
the same way. Each completed operation is a line in the member's trace, which survives its process.
"""

import contextlib
import hashlib
import json
import mmap
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.membership.agent import MembershipAgent
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.server import CoordinatorSetup
from shoal.membership.view import MembershipView

RUN = "toy"
PATIENCE = 40.0
STOP, LEFT, FLAG, PART, HALT, WORDS = 0, 16, 32, 64, 128, 512
GENERATION = 1 << 32
PLACES = ("nowhere", "before", "after", "deadlock")
"""Where a member may be stopped: before or after it hands its part in."""
_LOCK = threading.Lock()


class Stopped(Exception):  # noqa: N818
    """The test is over."""


def fence() -> None:
    """What was written is seen by all before anything that follows is read; x86 needs that too."""
    with _LOCK:
        pass


class Toy:
    """The training thread of member `m<k>`."""

    def __init__(self, name: str, address: str, memory: mmap.mmap, folder: Path) -> None:
        self.id, self.slot, self.folder = name, slot(name), folder
        self.words = memoryview(memory).cast("q")
        self.digest, self.done, self.handed, self.given = "", 0, 0, 0
        self.agent = MembershipAgent(
            name, address, RUN, look=lambda: (self.agent.applied, "computing"), holds=self.holds
        )

    def holds(self, generation: int) -> bool:
        self.words[LEFT + self.slot] = generation
        fence()
        return self.all_in(self.agent.view, self.agent.applied + 1)

    def all_in(self, view: MembershipView, number: int) -> bool:
        flags = [self.words[FLAG + slot(member)] for member in view.members]
        return all(flag // GENERATION == view.generation and flag % GENERATION >= number for flag in flags)

    def nobody_left(self, view: MembershipView) -> bool:
        fence()
        return all(self.words[LEFT + slot(member)] <= view.generation for member in view.members)

    def operation(self) -> None:
        agent = self.agent
        number = agent.enter(Deadline.after(PATIENCE))
        while agent.applied < number:
            view = agent.view
            if self.handed != view.generation * GENERATION + number:
                self.halt("before")
                self.words[PART + 2 * self.slot + number % 2] = self.slot * 1_000_003 + number
                fence()
                self.words[FLAG + self.slot] = self.handed = view.generation * GENERATION + number
                fence()
                self.halt("after")
            if self.all_in(view, number) and self.nobody_left(view) and agent.complete(view):
                break
            if agent.disturbed:
                agent.wait_settled(Deadline.after(PATIENCE))
            self.state()  # also here: a newcomer's part is waited for, and it has none before it has the state
            self.pause()
        parts = [(m, self.words[PART + 2 * slot(m) + number % 2]) for m in agent.committed_view.members]
        self.done = number
        self.digest = hashlib.sha256(f"{self.digest} {number} {parts}".encode()).hexdigest()[:16]
        with open(self.folder / f"{self.id}.trace", "a") as trace:
            trace.write(f"{number} {agent.committed_view.generation} {self.digest}\n")

    def halt(self, where: str) -> None:
        """Stop this process here, if the test asked for it."""
        if self.words[HALT + self.slot] == PLACES.index("deadlock"):
            lock = threading.Lock()
            with lock:
                lock.acquire(timeout=600.0)
        if self.words[HALT + self.slot] == PLACES.index(where):
            self.words[HALT + self.slot] = 0
            os.kill(os.getpid(), signal.SIGSTOP)

    def pause(self) -> None:
        if self.words[STOP]:
            raise Stopped
        time.sleep(0.002)

    def state(self) -> None:
        """Give it, or take it, or begin without one."""
        agent, install = self.agent, self.agent.installed
        assert install is not None
        file = self.folder / f"state-{install.view.generation}"
        current = self.done == agent.applied  # a view may count as done what is not yet in the digest
        if install.donor == self.id and install.fresh and self.given != install.view.generation and current:
            self.given = install.view.generation
            part = file.with_suffix(".part")
            part.write_text(
                json.dumps([agent.applied, self.digest, agent.committed_view.generation, agent.committed_view.members])
            )
            part.rename(file)
        if agent.blank and not install.donor:
            agent.filled()
        elif agent.blank and file.exists():
            self.done, self.digest, generation, members = json.loads(file.read_text())
            assert self.done == install.through
            agent.filled(MembershipView(generation, tuple(members)))

    def run(self) -> None:
        self.agent.start()
        end = "stopped"
        try:
            self.agent.wait_settled(Deadline.after(PATIENCE))
            while True:
                self.state()
                self.pause()
                if not self.agent.blank:
                    self.agent.begin(self.agent.applied, Deadline.after(PATIENCE))
                    self.operation()
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001
            end = f"{type(error).__name__}: {error}"
        finally:
            (self.folder / f"{self.id}.end").write_text(end)
            self.agent.close()


def slot(name: str) -> int:
    return int(name[1:])


@dataclass(frozen=True)
class Done:
    number: int
    generation: int
    digest: str


class World:
    """A coordinator and its members, forked from the test."""

    def __init__(self, folder: Path, rules: MembershipRules) -> None:
        self.folder, self.memory = folder, mmap.mmap(-1, WORDS * 8)
        self.handle = CoordinatorHandle(CoordinatorSetup(RUN, f"ipc://{folder}/coordinator", folder / "log", rules))
        self.pids: dict[str, int] = {}

    def add(self, name: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self.handle.forget()
                Toy(name, self.handle.address, self.memory, self.folder).run()
            finally:
                os._exit(0)
        self.pids[name] = pid

    def kill(self, name: str) -> None:
        """SIGKILL, seen by nobody."""
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def place(self, name: str, where: str) -> None:
        """Something happens at this place of the next operation."""
        memoryview(self.memory).cast("q")[HALT + slot(name)] = PLACES.index(where)

    def stop(self, name: str, where: str) -> None:
        """SIGSTOP there."""
        self.place(name, where)
        until(lambda: os.waitpid(self.pids[name], os.WNOHANG | os.WUNTRACED)[0])

    def kill_coordinator(self) -> None:
        os.kill(self.handle.pid, signal.SIGKILL)
        until(lambda: not self.handle.alive())

    def trace(self, name: str) -> list[Done]:
        file = self.folder / f"{name}.trace"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        words = [line.split() for line in lines if line.endswith("\n")]
        return [Done(int(number), int(generation), digest) for number, generation, digest in words]

    def end(self, name: str) -> str:
        file = self.folder / f"{name}.end"
        return file.read_text() if file.exists() else ""

    def go_on(self, *names: str, operations: int = 20) -> None:
        """Return when each of these has done some more operations."""
        goals = {name: len(self.trace(name)) + operations for name in names}
        until(lambda: all(len(self.trace(name)) >= goal for name, goal in goals.items()), self.describe)

    def check(self) -> None:
        """Agreement: whoever did an operation did the same as all others; no number twice, no generation back."""
        decided: dict[int, str] = {}
        for file in sorted(self.folder.glob("*.trace")):
            done = self.trace(file.stem)
            numbers, generations = [d.number for d in done], [d.generation for d in done]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), file.stem
            assert generations == sorted(generations), file.stem
            for d in done:
                assert decided.setdefault(d.number, d.digest) == d.digest, (file.stem, d)

    def describe(self) -> str:
        traces = {file.stem: len(self.trace(file.stem)) for file in self.folder.glob("*.trace")}
        ends = {file.stem: file.read_text() for file in self.folder.glob("*.end")}
        return f"operations {traces}, ended {ends}"

    def close(self) -> None:
        memoryview(self.memory).cast("q")[STOP] = 1
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        limit = Deadline.after(PATIENCE)
        for pid in self.pids.values():
            while os.waitpid(pid, os.WNOHANG)[0] == 0:
                if limit.expired:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        self.handle.stop(Deadline.after(10.0))


def until(what: Callable[[], object], describe: Callable[[], str] = lambda: "") -> None:
    limit = Deadline.after(PATIENCE)
    while not what():
        assert not limit.expired, describe()
        time.sleep(0.02)


@contextlib.contextmanager
def world(members: int, rules: MembershipRules) -> Iterator[World]:
    """Members m0 … that train already; all is checked, and nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="shoal-toy-") as name:
        here = World(Path(name), rules)
        try:
            here.handle.start(Deadline.after(30.0))
            names = [f"m{k}" for k in range(members)]
            for member in names:
                here.add(member)
            here.go_on(*names)
            yield here
        finally:
            here.close()
        here.check()
        assert not list(here.folder.glob("coordinator*")), "a socket is left"
