"""Versions over a pair of pipes, such as ssh gives: one side has a registry, the other asks it for versions and blobs.

    asks                 answers
    version REF          {"name": …, "digest": …, "aliases": […], "ref": …}       or {"error": …}
    blob DIGEST          {"size": n}, then n bytes                                or {"error": …}
    done                 nothing: the connection ends

Every line and blob has a largest size, every read a deadline. What arrives is checked against its digest by whoever
asked, so the other side need not be believed.
"""

import contextlib
import os
import select
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError, UsageError
from shoal.models.errors import RegistryError
from shoal.models.registry import Registry
from shoal.models.version import LARGEST_MANIFEST

LONGEST = 64 << 10
"""Bytes of a line at most."""
SECONDS = 120.0
"""For one answer."""
PIECE = 1 << 20


class RemoteVersion(msgspec.Struct, frozen=True):
    """A version as the other side describes it."""

    name: str
    digest: str
    ref: str
    aliases: list[str]


class _RemoteAnswer(msgspec.Struct, frozen=True):
    error: str = ""
    size: int = 0
    version: RemoteVersion | None = None


class PipePair:
    """Lines and blocks of bytes over two files; each read ends by a deadline."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes], seconds: float = SECONDS) -> None:
        self._files = (incoming, outgoing)  # descriptors live as long as these
        self._in, self._out, self._seconds = incoming.fileno(), outgoing.fileno(), seconds
        self._buffer = bytearray()

    def line(self) -> bytes:
        """The next line without its end; empty at the end of the connection."""
        deadline = Deadline.after(self._seconds)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > LONGEST:
                raise RegistryError(f"the other side sent a line of more than {LONGEST} bytes")
            if not self._fill(deadline):
                return b""
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def block(self, size: int) -> bytes:
        deadline = Deadline.after(self._seconds)
        while len(self._buffer) < size:
            if not self._fill(deadline):
                raise RegistryError(f"the connection ended {size - len(self._buffer)} bytes before the end of a blob")
        block = bytes(self._buffer[:size])
        del self._buffer[:size]
        return block

    def _fill(self, deadline: Deadline) -> bool:
        ready, _, _ = select.select([self._in], [], [], deadline.left)
        if not ready:
            raise RegistryError(f"the other side said nothing for {self._seconds:.0f} s")
        # From the descriptor: a buffered file would hold bytes that select() does not know of.
        data = os.read(self._in, PIECE)
        self._buffer += data
        return bool(data)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while len(view):
                view = view[os.write(self._out, view) :]
        except BrokenPipeError:
            raise RegistryError("the other side closed the connection") from None


def answer_requests(registry: Registry, pipes: PipePair) -> None:
    """Give the other side what it asks for, until it is done."""
    while (line := pipes.line()) not in (b"", b"done"):
        word, _, rest = line.decode("utf-8", "replace").partition(" ")
        data = b""
        try:
            if word == "version":
                found = registry.get(rest)
                answer = _RemoteAnswer(version=RemoteVersion(found.name, found.digest, found.ref, found.aliases))
            elif word == "blob":
                # No blob is larger than a manifest may be.
                data = registry.blobs.read(rest, LARGEST_MANIFEST)
                answer = _RemoteAnswer(size=len(data))
            else:
                answer = _RemoteAnswer(error=f"unknown request {word[:20]!r}")
        except ShoalError as error:
            answer = _RemoteAnswer(error=str(error))
        pipes.write(msgspec.json.encode(answer) + b"\n" + data)


class RemoteSource:
    """The asking side."""

    def __init__(self, pipes: PipePair) -> None:
        self._pipes = pipes

    def version(self, ref: str) -> RemoteVersion:
        found = self._ask(f"version {ref}").version
        if found is None:
            raise RegistryError(f"the other side does not describe {ref!r}")
        return found

    def blob(self, digest: str) -> bytes:
        size = self._ask(f"blob {digest}").size
        if not 0 <= size <= LARGEST_MANIFEST:
            raise RegistryError(f"the other side offers a blob of {size} bytes; {LARGEST_MANIFEST} is the most")
        # The size was checked above, because the other side is not believed.
        return self._pipes.block(size)

    def _ask(self, request: str) -> _RemoteAnswer:
        self._pipes.write(request.encode() + b"\n")
        try:
            answer = msgspec.json.decode(self._pipes.line(), type=_RemoteAnswer)
        except msgspec.DecodeError:
            raise RegistryError("the other side gives no answer; is 'shoal' on its PATH?") from None
        if answer.error:
            raise RegistryError(f"the other side says: {answer.error}")
        return answer

    def done(self) -> None:
        self._pipes.write(b"done\n")


def receive(registry: Registry, source: RemoteSource, refs: list[str], *, aliases: bool) -> list[str]:
    """Copy versions from the other side; one line of text for each."""
    lines = []
    for ref in refs:
        there = source.version(ref)
        added = registry.adopt(there.name, there.digest, source.blob)
        for alias in there.aliases if aliases else ():
            registry.tag(added.ref, alias)
        lines.append(f"{there.ref} is {added.ref} in {registry.root}")
    source.done()
    return lines


@contextmanager
def connected(url: str, *words: str) -> Iterator[PipePair]:
    """Pipes to `shoal models WORDS` on another host; RegistryError if that fails there."""
    process = open_ssh(url, *words)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield PipePair(process.stdout, process.stdin)
        process.stdin.close()
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        raise RegistryError(f"{url} did not end within {SECONDS:.0f} s") from None
    finally:
        # Without effect if it has ended; after an error it must not stay.
        process.kill()
        process.wait(10)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
    if code:
        raise RegistryError(f"{url} failed with exit code {code}; what it said stands above")


def open_ssh(url: str, *words: str) -> "subprocess.Popen[bytes]":
    """`shoal models WORDS` on the host of ssh://[USER@]HOST[:PORT]/PATH, with pipes to it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    target = f"{parts.username}@{host}" if parts.username else host
    # ssh would take a name that begins with a dash for an option.
    if not host or target.startswith("-") or not unquote(parts.path).strip("/"):
        raise UsageError(f"{url!r} is not ssh://[USER@]HOST[:PORT]/PATH of a registry")
    port = ["-p", str(parts.port)] if parts.port else []
    remote = shlex.join(["shoal", "models", *words, "--models", unquote(parts.path)])
    # BatchMode fails at once where ssh would ask for a password.
    command = ["ssh", "-o", "BatchMode=yes", *port, "--", target, remote]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except FileNotFoundError:
        raise UsageError(f"{url!r} needs ssh, which is not installed") from None
