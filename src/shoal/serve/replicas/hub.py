"""The server's end of all replicas: hands out programs and batches, and notices which replicas live.

One thread owns the socket; any thread may hold a program or ask for a batch. A replica is believed only in what can be
checked: its key, the batches it was given, tensors that fit what its program declares. One that breaks the protocol is
refused, and its batches go to others.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.core.clock import now
from shoal.core.version import __version__
from shoal.membership.coordinator_socket import CoordinatorMessage, CoordinatorSocket
from shoal.membership.protocol import printable
from shoal.serve.errors import PredictFailed, RequestError
from shoal.serve.replicas.batches import BatchDealer, KnownReplica, ReplicaBatch
from shoal.serve.replicas.protocol import (
    PIECE,
    AnswerPiece,
    AskProgram,
    BatchPiece,
    HeldProgram,
    PieceCollector,
    ProgramPiece,
    RefuseReplica,
    ReplicaNews,
    ServerWord,
    WantedProgram,
    WantedPrograms,
    cut_pieces,
    decode_replica_word,
    encode,
    pack_tensors,
    specs_of_wire,
    unpack_tensors,
)
from shoal.serve.tensors import Tensors, TensorSpec, datatype_of, fits

TURN = 0.05
SILENCE = 10.0
"""Seconds without a word after which a replica counts as lost; one whose connection ends is lost at once."""
CLOSE_SECONDS = 5.0
NOBODY = 30.0
"""Seconds a batch waits for a replica where there is none."""


@dataclass(eq=False)
class SharedProgram:
    """A program that replicas hold; `specs` are there once the first of them has loaded it."""

    wanted: WantedProgram
    path: Path
    specs: "Future[tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]" = field(default_factory=Future)


@dataclass(eq=False)
class ReplicaLink:
    """What is known of a connection beside its batches."""

    peer: tuple[str, int] | None
    heard: float
    pieces: dict[int, PieceCollector] = field(default_factory=dict)
    """Of the answers that are under way."""


class ReplicaHub:
    """Made in any thread; `start` begins to listen."""

    def __init__(self, open_socket: Callable[[], CoordinatorSocket], folder: Path, say: Callable[[str], None]) -> None:
        """`folder` keeps copies of the programs that are held."""
        self._open, self._folder, self._say = open_socket, folder, say
        self._dealer = BatchDealer()
        self._links: dict[bytes, ReplicaLink] = {}
        self._programs: dict[int, SharedProgram] = {}
        self._came: deque[ReplicaBatch] = deque()
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._serials = secrets.randbits(40)  # another server's programs must not be taken for these
        self._lock = threading.Lock()
        self._over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._socket = self._open()
        self._socket.watch(self._wakes)
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        os.eventfd_write(self._wakes, 1)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    # any thread

    def hold(self, path: Path) -> SharedProgram:
        """Have every replica load a copy of the file."""
        with self._lock:
            self._serials += 1
            serial = self._serials
        copy = self._folder / str(serial)
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        program = SharedProgram(WantedProgram(serial, path.name, copy.stat().st_size, digest), copy)
        with self._lock:
            self._programs[serial] = program
        return program

    def release(self, program: SharedProgram) -> None:
        with self._lock:
            self._programs.pop(program.wanted.serial, None)
        program.path.unlink(missing_ok=True)

    def submit(self, program: SharedProgram, inputs: Tensors) -> "Future[Tensors]":
        """The outputs of a replica."""
        data = pack_tensors(inputs)
        batch = ReplicaBatch(program.wanted.serial, data, now() + NOBODY)
        self._came.append(batch)
        os.eventfd_write(self._wakes, 1)
        return batch.answer

    def width(self, program: SharedProgram) -> int:
        """Batches that can be computed at the same time; 1 where no replica is there, so that one waits for it."""
        return max(1, self._dealer.width(program.wanted.serial))

    @property
    def names(self) -> list[str]:
        """Of the replicas that live."""
        return sorted(each.name for each in list(self._dealer.replicas.values()))

    # the hub's own thread

    def _run(self) -> None:
        try:
            while not self._over:
                self._socket.wait(TURN)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wakes)
                self._turn()
        finally:
            self._take_batches()
            self._dealer.close()
            self._socket.close()

    def _turn(self) -> None:
        for message in self._socket.messages():
            self._hear(message)
        self._take_batches()
        self._find_lost()
        self._dealer.expire(now())
        for route, batch in self._dealer.deal():
            for at, piece in cut_pieces(batch.data):
                self._send(route, BatchPiece(batch.number, batch.serial, at, len(batch.data)), piece)

    def _take_batches(self) -> None:
        while self._came:
            self._dealer.add(self._came.popleft())

    def _send(self, route: bytes, word: ServerWord, data: bytes = b"") -> None:
        self._socket.send(route, [encode(word), data])

    def _hear(self, message: CoordinatorMessage) -> None:
        route = message.sender
        try:
            if len(message.frames) != 2:
                raise ValueError(f"{len(message.frames)} frames")
            word = decode_replica_word.decode(message.frames[0])
            if isinstance(word, ReplicaNews):
                self._hear_state(route, word, message.peer)
            elif (link := self._links.get(route)) is None:
                return  # it counts as lost; its next state makes it known again
            elif isinstance(word, AskProgram):
                self._hand_piece(route, word)
            else:
                self._hear_answer(route, link, word, bytes(message.frames[1]))
        except (ValueError, RequestError, msgspec.MsgspecError) as error:
            self._refuse(route, f"it broke the protocol: {str(error)[:200]}")

    def _refuse(self, route: bytes, reason: str) -> None:
        self._lose(route, reason)
        self._send(route, RefuseReplica(reason))

    def _hear_state(self, route: bytes, state: ReplicaNews, peer: tuple[str, int] | None) -> None:
        if state.version != __version__:
            self._refuse(route, f"it has Shoal {state.version[:40]} and the server {__version__}; install the same")
            return
        replica = self._dealer.replicas.get(route)
        if replica is None:
            replica = self._dealer.replicas[route] = KnownReplica(state.name, state.slots)
            many = "1 batch" if state.slots == 1 else f"{state.slots} batches"
            self._say(f"replica {printable(state.name)} is there: {many} at a time")
        link = self._links.setdefault(route, ReplicaLink(peer, now()))
        link.peer, link.heard = peer or link.peer, now()
        with self._lock:
            programs = dict(self._programs)
        replica.holds = frozenset(each.serial for each in state.held if self._is_usable(programs, each))
        self._send(route, WantedPrograms(tuple(each.wanted for each in programs.values())))

    def _is_usable(self, programs: dict[int, SharedProgram], held: HeldProgram) -> bool:
        """Whether a replica holds what it should; the first that does says what the program takes and gives."""
        program = programs.get(held.serial)
        if program is None:
            return False
        specs = specs_of_wire(held.inputs), specs_of_wire(held.outputs)
        if not program.specs.done():
            if held.error:
                program.specs.set_exception(PredictFailed(held.error))
            else:
                program.specs.set_result(specs)
        return not held.error and program.specs.exception(0) is None and program.specs.result(0) == specs

    def _hand_piece(self, route: bytes, asked: AskProgram) -> None:
        with self._lock:
            program = self._programs.get(asked.serial)
        if program is None:
            return  # not wanted any more, as the replica will hear
        with contextlib.suppress(FileNotFoundError), program.path.open("rb") as file:
            file.seek(min(asked.at, program.wanted.size))
            self._send(route, ProgramPiece(asked.serial, asked.at), file.read(PIECE))

    def _hear_answer(self, route: bytes, link: ReplicaLink, word: AnswerPiece, data: bytes) -> None:
        link.heard = now()
        batch = self._dealer.find(route, word.batch)
        if batch is None:
            link.pieces.pop(word.batch, None)
            return  # it was given to another one meanwhile
        pieces = link.pieces.setdefault(word.batch, PieceCollector(word.size))
        if not pieces.add(word.at, word.size, data):
            return
        del link.pieces[word.batch]
        if word.status != 200:
            kind = RequestError if word.status < 500 else PredictFailed
            self._dealer.finish(route, batch, kind(printable(word.error)))
            return
        outputs = unpack_tensors(pieces.data)
        self._check_outputs(batch, outputs)
        self._dealer.finish(route, batch, outputs)

    def _check_outputs(self, batch: ReplicaBatch, outputs: Tensors) -> None:
        program = self._programs.get(batch.serial)
        if program is None:
            return
        wanted = {each.name: each for each in program.specs.result(0)[1]}
        for name, array in outputs.items():
            spec = wanted.get(name)
            if spec is None or datatype_of(array) != spec.datatype or not fits(spec.shape, array.shape):
                raise ValueError(f"output {name[:80]!r} of shape {list(array.shape)} is not what the program gives")
        if len(outputs) < len(wanted):
            raise ValueError(f"{len(outputs)} outputs of {len(wanted)}")

    def _find_lost(self) -> None:
        connected = self._socket.connected()
        for route, link in list(self._links.items()):
            if link.peer is not None and link.peer not in connected:
                self._lose(route, "its connection ended")
            elif now() - link.heard > SILENCE:
                self._lose(route, f"it said nothing for {SILENCE:.0f} s")

    def _lose(self, route: bytes, why: str) -> None:
        self._links.pop(route, None)
        replica = self._dealer.lose(route)
        if replica is not None:
            asked = f"; what it was asked goes to others ({len(replica.asked)})" if replica.asked else ""
            self._say(f"replica {printable(replica.name)} is lost: {why}{asked}")
