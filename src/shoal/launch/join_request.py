"""Asks the coordinator of a run what to run here; in a process of its own, because a launcher has no threads."""

import contextlib
import errno
import os
import secrets
import select
import signal
from importlib.metadata import version
from typing import NoReturn

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.core.clock import Deadline, now
from shoal.core.errors import ShoalError, UsageError
from shoal.core.signals import held_back
from shoal.membership.coordinator_client import CoordinatorClient
from shoal.membership.credentials import ClientCredentials
from shoal.membership.envelope import ASKING, ProtocolMismatch, UnreadableMessage
from shoal.membership.invitation import LARGEST_ANSWER, MATTERS, RunBrief, RunQuery
from shoal.membership.protocol import JoinRefused

SECONDS = 10.0
"""Until somebody must have answered."""
REPEAT = 1.0
"""Seconds until the question is sent again, also after a refusal; see LATER."""
LATER = 30.0
"""Seconds in which a run may find out that the workers are lost that this machine had before it was started again."""
MOST_FAILURES = 2
"""Handshakes that fail one after the other: one may have met a coordinator that was just ending."""


class _NoAnswer(msgspec.Struct, frozen=True, tag=True):
    """The child's word that there is no answer, and why."""

    reason: str


_said: msgspec.msgpack.Decoder[RunBrief | _NoAnswer] = msgspec.msgpack.Decoder(RunBrief | _NoAnswer)


def versions() -> dict[str, str]:
    """Of what must be alike on all machines; found without importing any of it."""
    return {name: version(name) for name in MATTERS}


def question(workers: int, slot: int = -1, look: bool = False) -> RunQuery:
    return RunQuery(workers=workers, token=secrets.token_hex(16), versions=versions(), slot=slot, look=look)


def ask(address: str, key: ClientCredentials, what: RunQuery, seconds: float = SECONDS) -> RunBrief:
    """The answer; UsageError says why there is none. Where ZeroMQ may be used: not in a launcher."""
    line = CoordinatorClient(address, ASKING, key, LARGEST_ANSWER)
    fate = line.watch()
    line.connect()
    try:
        return _converse(line, fate, what, address, Deadline.after(seconds))
    finally:
        line.close()


def _converse(
    line: CoordinatorClient, fate: "zmq.Socket[bytes]", what: RunQuery, address: str, deadline: Deadline
) -> RunBrief:
    trouble, failures, due = f"nobody answers at {address}; is a run listening there?", 0, 0.0
    patience: Deadline | None = None
    while not (patience or deadline).expired:
        if now() >= due and line.say(what):
            due = now() + REPEAT
        for frames in line.messages(0.02):
            with contextlib.suppress(UnreadableMessage):
                answer = _read(frames, address)
                if isinstance(answer, RunBrief):
                    return answer
                trouble, patience = f"cannot join at {address}: {answer.reason}", patience or Deadline.after(LATER)
        while fate.poll(0):
            event = recv_monitor_message(fate)
            said = _trouble(int(event["event"]), int(event["value"]), address)
            trouble, failures = said or trouble, failures + _COUNTS.get(int(event["event"]), 0)
        if failures >= MOST_FAILURES:
            break
    raise UsageError(trouble)


_COUNTS: dict[int, int] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: MOST_FAILURES,  # ZeroMQ does not try again
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: 1,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: 1,
}


def _trouble(event: int, value: int, address: str) -> str:
    """What an event of the connection means for people; empty: nothing."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return (
            f"{address} does not know this key; make an invitation there with shoal keys invite, or start the run with "
            "--allow and this key's public half"
        )
    if event in _COUNTS:
        return (
            f"{address} closed the handshake: it has another key than the one this file invites to (ask for an "
            "invitation to that run, or give its public key with --server), or too many connections; try again"
        )
    if event == zmq.EVENT_CLOSED or (event == zmq.EVENT_DISCONNECTED and value == errno.ECONNREFUSED):
        return f"nobody listens at {address}; is a run there (shoal run --listen)?"
    return ""


def _read(frames: list[bytes], address: str) -> RunBrief | JoinRefused:
    """The answer; UsageError if it is a refusal for good."""
    try:
        answer = ASKING.answer(frames)
    except ProtocolMismatch as error:
        raise UsageError(f"cannot join at {address}: {error}") from None
    if isinstance(answer, JoinRefused) and not answer.later:
        raise UsageError(f"cannot join at {address}: {answer.reason}")
    return answer


def ask_apart(address: str, key: ClientCredentials, what: RunQuery, seconds: float = SECONDS) -> RunBrief:
    """The same, from a process that must not have threads."""
    read, write = os.pipe()
    with held_back():
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _become(write, address, key, what, seconds)
    os.close(write)
    try:
        # longer than the child may take, which gives up by itself
        data = _drain(read, Deadline.after(seconds + LATER + 10.0))
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    try:
        said = _said.decode(data)
    except msgspec.MsgspecError:
        raise ShoalError(f"the process that asked {address} ended without an answer; try again") from None
    if isinstance(said, _NoAnswer):
        raise UsageError(said.reason)
    return said


def _become(write: int, address: str, key: ClientCredentials, what: RunQuery, seconds: float) -> NoReturn:
    """In the child: ask, say, and never return."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent hears it, and ends it
        # the fork was made while signals were held back
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        said: RunBrief | _NoAnswer = ask(address, key, what, seconds)
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        said = _NoAnswer(str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}")
    try:
        data = msgspec.msgpack.encode(said)
        while data:
            data = data[os.write(write, data) :]
    finally:
        os._exit(0)


def _drain(read: int, deadline: Deadline) -> bytes:
    """What comes until the pipe is closed."""
    pieces: list[bytes] = []
    while not deadline.expired and select.select([read], [], [], deadline.left)[0]:
        piece = os.read(read, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)
