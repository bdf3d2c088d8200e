"""`shoal pool serve`, on a machine of a pool: has imported torch, and forks a `shoal join` for each run that leases it.

Standard input brings orders, a line of JSON each; standard output carries what the processes write, likewise. The end
of the input ends the machine's part in every run, and the agent.
"""

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.private_file import read_private

LARGEST_KEY = 8192
LEAVES = 70.0
"""Seconds in which the processes of an agent that is to end may leave their runs."""


class AgentOrder(msgspec.Struct, frozen=True):
    """Run `shoal WORDS`, or leave the run of that number."""

    number: int
    words: tuple[str, ...] = ()
    secret: str = ""
    key: str = ""
    """Where the secret is, if it is not here: a file of mode 0600 that all machines see. It is read once."""
    folder: str = ""
    leave: bool = False


class AgentNews(msgspec.Struct, frozen=True):
    """A line that a process wrote, or its exit code; number 0: the agent is ready."""

    number: int
    stream: str = "out"
    text: str = ""
    code: int | None = None


class _AgentChild:
    def __init__(self, number: int, pid: int, stdin: int, pipes: dict[int, str]) -> None:
        self.number, self.pid, self.stdin, self.pipes = number, pid, stdin, pipes
        self.partial = dict.fromkeys(pipes.values(), b"")

    def leave(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


class PoolAgent:
    """`run` executes the words of a command in a forked process, and returns its exit code."""

    def __init__(self, run: Callable[[list[str]], int]) -> None:
        self._run, self._children = run, dict[int, _AgentChild]()
        self._selector = selectors.DefaultSelector()
        self._input = b""
        self._over: Deadline | None = None

    def serve(self) -> None:
        """Until the input has ended and nothing is left."""
        self._say(AgentNews(0))
        self._selector.register(0, selectors.EVENT_READ)
        while self._over is None or (self._children and not self._over.expired):
            for key, _ in self._selector.select(0.05):
                if key.fd == 0:
                    self._read_orders()
                else:
                    self._read_output(key.fd, key.data)
            self._reap()
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def _read_orders(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self._selector.unregister(0)
            self._over = Deadline.after(LEAVES)
            for child in self._children.values():
                child.leave()
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=AgentOrder)
            if not order.leave:
                self._start(order)
            elif order.number in self._children:
                self._children[order.number].leave()

    def _start(self, order: AgentOrder) -> None:
        ends = [os.pipe() for _ in range(3)]
        # or the child would write what is still in the buffer a second time
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._become(order, ends)
        (inner, stdin), (out, outer_out), (err, outer_err) = ends
        for each in (inner, outer_out, outer_err):
            os.close(each)
        with contextlib.suppress(BrokenPipeError):
            # through a pipe, because other users can read the arguments of a process
            os.write(stdin, f"{order.secret or take_secret(order.key)}\n".encode())
        child = _AgentChild(order.number, pid, stdin, {out: "out", err: "err"})
        self._children[order.number] = child
        for pipe in child.pipes:
            self._selector.register(pipe, selectors.EVENT_READ, child)

    def _become(self, order: AgentOrder, ends: list[tuple[int, int]]) -> NoReturn:
        """In the child."""
        code = 1
        try:
            os.setpgid(0, 0)
            for child in self._children.values():
                child.leave()  # or its lease would not end with the agent
            for number, end in zip((0, 1, 2), (ends[0][0], ends[1][1], ends[2][1]), strict=True):
                os.dup2(end, number)
            for pair in ends:
                for end in pair:
                    os.close(end)
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
            if order.folder and os.path.isdir(order.folder):
                os.chdir(order.folder)
            code = self._run(list(order.words))
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _read_output(self, pipe: int, child: _AgentChild) -> None:
        stream = child.pipes[pipe]
        data = os.read(pipe, 1 << 16)
        if not data:
            self._selector.unregister(pipe)
            os.close(pipe)
            del child.pipes[pipe]
        *lines, child.partial[stream] = (child.partial[stream] + data).split(b"\n")
        for line in lines:
            self._say(AgentNews(child.number, stream, line.decode(errors="replace")))

    def _reap(self) -> None:
        for child in list(self._children.values()):
            # Its output first: its last lines must be told before its exit code.
            if child.pipes:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.leave()
                del self._children[child.number]
                self._say(AgentNews(child.number, code=os.waitstatus_to_exitcode(status)))

    def _say(self, news: AgentNews) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(news) + b"\n")
        sys.stdout.buffer.flush()


def take_secret(file: str) -> str:
    """The text of a private file, which is removed; empty if it cannot be read: the run then refuses the machine."""
    if not file:
        return ""
    path = Path(file)
    try:
        os.listdir(path.parent)  # a shared file system may not have heard of the new file otherwise
        text = read_private(path, LARGEST_KEY).decode()
    except (OSError, UsageError) as error:
        sys.stderr.write(f"shoal: cannot read the invitation in {file!r}: {error}\n")
        return ""
    path.unlink(missing_ok=True)
    return text
