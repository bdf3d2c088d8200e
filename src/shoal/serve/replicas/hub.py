"""The server's end of all replicas: hands out programs and batches, and notices which replicas live.

One thread owns the socket; any thread may hold a program or ask for a batch. A replica is believed only in what can be
checked: its key, the batches it was given, tensors that fit what its program declares. One that breaks the protocol is
refused, and its batches go to others.
"""

import contextlib
import os
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
from shoal.serve.replicas.programs import SharedProgram, SharedPrograms, check_outputs
from shoal.serve.replicas.protocol import (
    AnswerPiece,
    AskProgram,
    BatchPiece,
    PieceCollector,
    ProgramPiece,
    RefuseReplica,
    ReplicaNews,
    ServerWord,
    cut_pieces,
    decode_replica_word,
    encode,
    pack_tensors,
    unpack_tensors,
)
from shoal.serve.tensors import Tensors

# Seconds between two looks at silence and deadlines; messages and batches wake the thread at once.
TURN = 0.05
SILENCE = 10.0
"""Seconds without a word after which a replica counts as lost; one whose connection ends is lost at once."""
CLOSE_SECONDS = 5.0
NO_REPLICA = 30.0
"""Seconds a batch waits for a replica where there is none."""


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
        self._open, self._say, self.programs = open_socket, say, SharedPrograms(folder)
        self._dealer = BatchDealer()
        self._links: dict[bytes, ReplicaLink] = {}
        # A deque needs no lock between one thread that appends and one that takes.
        self._came: deque[ReplicaBatch] = deque()
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
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

    def submit(self, program: SharedProgram, inputs: Tensors) -> "Future[Tensors]":
        """The outputs of a replica."""
        data = pack_tensors(inputs)
        batch = ReplicaBatch(program.wanted.serial, data, now() + NO_REPLICA)
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
            # Those that came last too, so that no caller waits for ever.
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
                self._send(route, ProgramPiece(word.serial, word.at), self.programs.read_piece(word))
            else:
                self._hear_answer(route, link, word, bytes(message.frames[1]))
        except (ValueError, RequestError, msgspec.MsgspecError) as error:
            self._refuse(route, f"it broke the protocol: {str(error)[:200]}")

    def _refuse(self, route: bytes, reason: str) -> None:
        self._lose(route, reason)
        self._send(route, RefuseReplica(reason))

    def _hear_state(self, route: bytes, state: ReplicaNews, peer: tuple[str, int] | None) -> None:
        # Programs and tensors are exchanged in this version's own form.
        if state.version != __version__:
            self._refuse(route, f"it has Shoal {state.version[:40]} and the server {__version__}; install the same")
            return
        replica = self._dealer.replicas.get(route)
        if replica is None:
            replica = self._dealer.replicas[route] = KnownReplica(state.name, state.slots)
            many = "1 batch" if state.slots == 1 else f"{state.slots} batches"
            # printable: a name from another machine must not steer this terminal.
            self._say(f"replica {printable(state.name)} is there: {many} at a time")
        link = self._links.setdefault(route, ReplicaLink(peer, now()))
        link.peer, link.heard = peer or link.peer, now()
        replica.holds = self.programs.usable(state.held)
        self._send(route, self.programs.wanted)

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
            # Only these two: what a replica says must not raise anything else here.
            kind = RequestError if word.status < 500 else PredictFailed
            self._dealer.finish(route, batch, kind(printable(word.error)))
            return
        outputs = unpack_tensors(pieces.data)
        # A program may have been released while its last batch was computed.
        if (program := self.programs.find(batch.serial)) is not None:
            check_outputs(program, outputs)
        self._dealer.finish(route, batch, outputs)

    def _find_lost(self) -> None:
        connected = self._socket.connected()
        for route, link in list(self._links.items()):
            # A killed process closes its connection at once, long before its silence would be noticed.
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
