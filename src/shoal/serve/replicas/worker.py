"""A replica: connects to its server, loads what the server wants, and computes batches.

One thread owns the connection; each batch is computed in a thread of a pool, each program loaded in a thread of its
own. The server is the one whose invitation this process was given; it sends data alone, never code.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from shoal.core.clock import now
from shoal.core.errors import ShoalError, UsageError
from shoal.core.version import __version__
from shoal.membership.credentials import ClientCredentials
from shoal.serve.errors import LoadRefused, RequestError
from shoal.serve.loader import ServableLoader
from shoal.serve.replicas.protocol import (
    LARGEST_MESSAGE,
    PIECE,
    AnswerPiece,
    AskProgram,
    BatchPiece,
    HeldProgram,
    PieceCollector,
    ProgramPiece,
    RefuseReplica,
    ReplicaNews,
    ReplicaWord,
    WantedProgram,
    WantedPrograms,
    cut_pieces,
    decode_server_word,
    encode,
    pack_tensors,
    specs_to_wire,
    unpack_tensors,
)
from shoal.serve.servable import Servable
from shoal.serve.source import LoadOptions, file_loader
from shoal.serve.tensors import check_inputs

PERIOD = 0.25
"""Seconds between two states."""
AHEAD = 16
"""Pieces of a program that are asked for and have not come."""
LONGEST_WAIT = 60.0
"""Seconds without a word of the server after which a replica ends."""
RENEW = 5.0
"""Seconds without one after which it connects again, and then asks for missing pieces again."""


@dataclass(eq=False)
class ReceivedProgram:
    """A program on its way, in a file; then loaded."""

    wanted: WantedProgram
    path: Path
    come: int = 0
    asked: int = 0
    moved: float = field(default_factory=now)
    """When the last piece came, or pieces were asked for again."""
    loader: ServableLoader | None = None
    servable: Servable | None = None
    told: HeldProgram | None = None
    """What the server hears of it."""


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
        self._programs: dict[int, ReceivedProgram] = {}
        self._batches: dict[int, ReceivedBatch] = {}
        self._ready: deque[tuple[int, bytes, int, str]] = deque()
        """Answers that are to be sent: batch, data, status, error."""
        self._computing = ThreadPoolExecutor(own.slots, thread_name_prefix="predict")
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._heard = self._renewed = now()
        self._due = 0.0

    def run(self) -> None:
        """ShoalError: the server is gone; UsageError: it refuses this replica."""
        self._socket.connect(self._address)
        with tempfile.TemporaryDirectory(prefix="shoal-replica-", ignore_cleanup_errors=True) as folder:
            try:
                while True:
                    self._turn(Path(folder))
            finally:
                self._computing.shutdown(wait=False, cancel_futures=True)
                self._loading.shutdown(wait=False, cancel_futures=True)
                self._context.destroy(linger=100)

    def _turn(self, folder: Path) -> None:
        self._check()
        ready = dict(self._poller.poll(int(1000 * PERIOD / 2)))
        if self._wakes in ready:
            os.eventfd_read(self._wakes)
        with contextlib.suppress(zmq.Again):
            while True:
                self._hear(self._socket.recv_multipart(zmq.NOBLOCK), folder)
        while self._ready:
            self._answer(*self._ready.popleft())
        for program in self._programs.values():
            self._ask_pieces(program)
        if now() >= self._due:
            self._due = now() + PERIOD
            held = tuple(each.told for each in self._programs.values() if each.told is not None)
            self._say(ReplicaNews(self._own.name, __version__, self._own.slots, held))
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
            self._batches.clear()

    def _say(self, word: ReplicaWord, data: bytes = b"") -> None:
        with contextlib.suppress(zmq.Again):  # without a connection; the server asks somebody else
            self._socket.send_multipart([encode(word), data], zmq.NOBLOCK)

    def _hear(self, frames: list[bytes], folder: Path) -> None:
        word = decode_server_word.decode(frames[0])
        self._heard = now()
        match word:
            case WantedPrograms():
                self._want(word.programs, folder)
            case ProgramPiece():
                self._take_piece(word, frames[1])
            case BatchPiece():
                self._take_batch(word, frames[1])
            case RefuseReplica():
                raise UsageError(f"the server refuses this replica: {word.reason}")

    # programs

    def _want(self, programs: tuple[WantedProgram, ...], folder: Path) -> None:
        """Drop what is not wanted any more, begin with what is new."""
        wanted = {each.serial: each for each in programs}
        for serial in set(self._programs) - set(wanted):
            gone = self._programs.pop(serial)
            shutil.rmtree(gone.path.parent, ignore_errors=True)
            if gone.loader is not None:
                gone.servable = None
                self._loading.submit(gone.loader.unload)
        for serial, each in wanted.items():
            if serial not in self._programs:
                path = folder / str(serial) / Path(each.file).name  # errors name the file as the user does
                path.parent.mkdir()
                path.touch()
                program = self._programs[serial] = ReceivedProgram(each, path)
                if not each.size:
                    self._loading.submit(self._load, program)  # which says what is wrong with an empty file

    def _ask_pieces(self, program: ReceivedProgram) -> None:
        if program.come < program.wanted.size and now() - program.moved > RENEW:  # a connection took them with it
            program.asked, program.moved = program.come, now()
        while program.asked < program.wanted.size and program.asked < program.come + AHEAD * PIECE:
            self._say(AskProgram(program.wanted.serial, program.asked))
            program.asked += PIECE

    def _take_piece(self, word: ProgramPiece, data: bytes) -> None:
        program = self._programs.get(word.serial)
        if program is None or word.at != program.come or not data:
            return  # it was asked for twice
        with program.path.open("ab") as file:
            file.write(data)
        program.come, program.moved = program.come + len(data), now()
        if program.come >= program.wanted.size:
            self._loading.submit(self._load, program)

    def _load(self, program: ReceivedProgram) -> None:
        serial = program.wanted.serial
        try:
            with program.path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != program.wanted.digest:
                    raise LoadRefused("it came damaged")
            program.loader = file_loader(program.path, LoadOptions())
            found = program.servable = program.loader.load()
            program.told = HeldProgram(serial, specs_to_wire(found.inputs), specs_to_wire(found.outputs))
        except Exception as error:  # noqa: BLE001  (loaders run libraries)
            program.told = HeldProgram(serial, error=(str(error) or type(error).__name__)[:300])
        shutil.rmtree(program.path.parent, ignore_errors=True)  # a replica that is killed leaves no copy behind
        self._wake()

    # batches

    def _take_batch(self, word: BatchPiece, data: bytes) -> None:
        batch = self._batches.setdefault(word.batch, ReceivedBatch(word.serial, PieceCollector(word.size)))
        try:
            complete = batch.pieces.add(word.at, word.size, data)
        except ValueError:  # a piece was lost with a connection; the server asks somebody else
            del self._batches[word.batch]
            return
        if complete:
            del self._batches[word.batch]
            self._computing.submit(self._compute, word.batch, word.serial, batch.pieces.data)

    def _compute(self, batch: int, serial: int, data: bytes) -> None:
        try:
            program = self._programs.get(serial)
            servable = program.servable if program is not None else None
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
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
