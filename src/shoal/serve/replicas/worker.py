"""A replica: connects to its server, loads what the server wants, and computes batches.

One thread owns the connection; each batch is computed in a thread of a pool, each program loaded in a thread of its
own. The server is the one whose invitation this process was given; it sends data alone, never code.
"""

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import zmq

from shoal.core.clock import now
from shoal.core.errors import ShoalError, UsageError
from shoal.core.version import __version__
from shoal.membership.credentials import ClientCredentials
from shoal.serve.errors import RequestError
from shoal.serve.replicas.protocol import (
    LARGEST_MESSAGE,
    AnswerPiece,
    BatchPiece,
    PieceCollector,
    ProgramPiece,
    RefuseReplica,
    ReplicaNews,
    ReplicaWord,
    WantedPrograms,
    cut_pieces,
    decode_server_word,
    encode,
    pack_tensors,
    unpack_tensors,
)
from shoal.serve.replicas.received import ReceivedPrograms
from shoal.serve.servable import Servable
from shoal.serve.tensors import check_inputs

PERIOD = 0.25
"""Seconds between two states."""
LONGEST_WAIT = 60.0
"""Seconds without a word of the server after which a replica ends."""
RENEW = 5.0
"""Seconds without one after which it connects again."""


@dataclass(eq=False)
class ReceivedBatch:
    serial: int
    pieces: PieceCollector


@dataclass(frozen=True)
class ReplicaIdentity:
    """What a replica says of itself."""

    name: str
    slots: int = 1


class ReplicaWorker:
    """`run` serves until the server refuses it, is gone, or `check` raises."""

    def __init__(
        self, address: str, key: ClientCredentials, own: ReplicaIdentity, check: Callable[[], None] = lambda: None
    ) -> None:
        self._address, self._own, self._check = address, own, check
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.curve_serverkey = key.coordinator
        self._socket.curve_publickey, self._socket.curve_secretkey = key.pair.public, key.pair.secret
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakes, zmq.POLLIN)
        self._batches: dict[int, ReceivedBatch] = {}
        self._ready: deque[tuple[int, bytes, int, str]] = deque()
        """Answers that are to be sent: batch, data, status, error."""
        self._computing = ThreadPoolExecutor(own.slots, thread_name_prefix="predict")
        self._heard = self._renewed = now()
        self._due = 0.0

    def run(self) -> None:
        """ShoalError: the server is gone; UsageError: it refuses this replica."""
        self._socket.connect(self._address)
        with tempfile.TemporaryDirectory(prefix="shoal-replica-", ignore_cleanup_errors=True) as folder:
            programs = ReceivedPrograms(Path(folder), self._say, self._wake)
            try:
                while True:
                    self._turn(programs)
            finally:
                self._computing.shutdown(wait=False, cancel_futures=True)
                programs.close()
                self._context.destroy(linger=100)

    def _turn(self, programs: ReceivedPrograms) -> None:
        self._check()
        ready = dict(self._poller.poll(int(1000 * PERIOD / 2)))
        if self._wakes in ready:
            os.eventfd_read(self._wakes)
        with contextlib.suppress(zmq.Again):
            while True:
                self._hear(self._socket.recv_multipart(zmq.NOBLOCK), programs)
        while self._ready:
            self._answer(*self._ready.popleft())
        programs.ask()
        if now() >= self._due:
            self._due = now() + PERIOD
            self._say(ReplicaNews(self._own.name, __version__, self._own.slots, programs.told))
        self._mind_silence()

    def _mind_silence(self) -> None:
        silent = now() - self._heard
        if silent > LONGEST_WAIT:
            raise ShoalError(f"the server at {self._address} has said nothing for {silent:.0f} s")
        if silent > RENEW and now() - self._renewed > RENEW:
            self._renewed = now()
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._address)
            self._socket.connect(self._address)
            # To the server a new connection is a new replica, and it has given these batches to others.
            self._batches.clear()

    def _say(self, word: ReplicaWord, data: bytes = b"") -> None:
        with contextlib.suppress(zmq.Again):  # without a connection; the server asks somebody else
            self._socket.send_multipart([encode(word), data], zmq.NOBLOCK)

    def _hear(self, frames: list[bytes], programs: ReceivedPrograms) -> None:
        word = decode_server_word.decode(frames[0])
        self._heard = now()
        match word:
            case WantedPrograms():
                programs.want(word.programs)
            case ProgramPiece():
                programs.take(word, frames[1])
            case BatchPiece():
                self._take_batch(word, frames[1], programs)
            case RefuseReplica():
                raise UsageError(f"the server refuses this replica: {word.reason}")

    # batches

    def _take_batch(self, word: BatchPiece, data: bytes, programs: ReceivedPrograms) -> None:
        batch = self._batches.setdefault(word.batch, ReceivedBatch(word.serial, PieceCollector(word.size)))
        try:
            complete = batch.pieces.add(word.at, word.size, data)
        except ValueError:  # a piece was lost with a connection; the server asks somebody else
            del self._batches[word.batch]
            return
        if complete:
            del self._batches[word.batch]
            self._computing.submit(self._compute, word.batch, programs.find(word.serial), batch.pieces.data)

    def _compute(self, batch: int, servable: Servable | None, data: bytes) -> None:
        try:
            if servable is None:
                raise RequestError("the program is not loaded here")
            inputs = unpack_tensors(data)
            check_inputs(servable.inputs, inputs)
            answer = pack_tensors(servable.predict(inputs)), 200, ""
        except RequestError as error:
            answer = b"", error.status, str(error)[:300]
        except Exception as error:  # noqa: BLE001  (models run whatever is in their file)
            answer = b"", 500, f"the model raised {type(error).__name__}: {str(error)[:200]}"
        self._ready.append((batch, *answer))
        self._wake()

    def _answer(self, batch: int, data: bytes, status: int, error: str) -> None:
        for at, piece in cut_pieces(data):
            self._say(AnswerPiece(batch, at, len(data), status, error), piece)

    def _wake(self) -> None:
        os.eventfd_write(self._wakes, 1)


_OPTIONS = {
    zmq.MAXMSGSIZE: LARGEST_MESSAGE,
    zmq.SNDHWM: 0,  # at most the answers of the batches that it was given
    zmq.RCVHWM: 1024,
    # Without a connection sending fails at once instead of queueing (see `_say`).
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
