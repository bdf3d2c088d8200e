"""The switch process (link.c) as its lab talks to it: one line asked, one line answered, in effect when answered."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.cluster.lab.host import FRAME
from shoal.cluster.lab.link import Link
from shoal.core.errors import ShoalError

QUEUE = 1000 * FRAME
"""Bytes that may wait for a link before frames are dropped."""


class Stat(msgspec.Struct, frozen=True):
    """What a host's link did so far: up is from the host, down is to it."""

    up_frames: int
    up_bytes: int
    down_frames: int
    down_bytes: int
    lost: int
    """By the coin."""
    overflowed: int
    """From a full queue."""
    duplicated: int
    flipped: int
    refused: int
    """Sent by this host to one that may not hear it."""


class Switch:
    """All ports start open, unlimited and without delay."""

    def __init__(self, program: Path, parent: int, seed: int, namespaces: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [program, "switch", str(parent), str(seed), *namespaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self._read() != "ready":
            raise ShoalError(f"the lab's switch did not start: {self._last_words()}; see 'shoal lab check'")

    def set_link(self, port: int, link: Link) -> None:
        times = f"{link.delay.nanoseconds} {link.jitter.nanoseconds}"
        self.ask(f"set {port} {link.rate.bits} {times} {link.loss:.17g} {link.burst:.17g} {QUEUE}")

    def noise(self, port: int, duplicate: float, flip: float) -> None:
        self.ask(f"noise {port} {duplicate:.17g} {flip:.17g}")

    def allow(self, rows: Sequence[Sequence[bool]]) -> None:
        """`rows[a][b]`: whether b hears a."""
        self.ask(*(f"allow {port} {''.join('01'[each] for each in row)}" for port, row in enumerate(rows)))

    def stat(self, port: int) -> Stat:
        return Stat(*map(int, self.ask(f"stat {port}")[0].split()))

    def ask(self, *lines: str) -> list[str]:
        """The answers to some commands."""
        try:
            os.write(self._stdin, "".join(f"{line}\n" for line in lines).encode())
        except BrokenPipeError:
            raise ShoalError(f"the lab's switch is gone: {self._last_words()}; start the lab again") from None
        return [self._answer(line) for line in lines]

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=10.0)

    def abandon(self) -> None:
        """In a forked child: close the pipes; the process is the parent's to wait for."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        self._process.returncode = 0

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _answer(self, line: str) -> str:
        answer = self._read()
        if not answer or answer.startswith("error"):
            raise ShoalError(f"the lab's switch says {answer or 'nothing'!r} to {line!r}; start the lab again")
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _last_words(self) -> str:
        self._process.terminate()
        return self._process.communicate(timeout=10.0)[1].decode().strip() or "it gave no reason"
