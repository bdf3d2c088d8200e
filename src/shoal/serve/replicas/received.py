"""The programs that a server wants a replica to hold: fetched in pieces, checked, loaded, and let go.

The thread that owns the connection calls everything; each program is loaded in a thread beside it.
"""

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.clock import now
from shoal.serve.errors import LoadRefused
from shoal.serve.loader import ServableLoader
from shoal.serve.replicas.protocol import PIECE, AskProgram, HeldProgram, ProgramPiece, WantedProgram, specs_to_wire
from shoal.serve.servable import Servable
from shoal.serve.source import LoadOptions, file_loader

AHEAD = 16
"""Pieces of a program that are asked for and have not come."""
AGAIN = 5.0
"""Seconds without a piece after which those that are missing are asked for again."""


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


class ReceivedPrograms:
    """In a folder that is the replica's alone; `say` asks the server, `wake` ends the wait of the connection."""

    def __init__(self, folder: Path, say: Callable[[AskProgram], None], wake: Callable[[], None]) -> None:
        self._folder, self._say, self._wake = folder, say, wake
        self._programs: dict[int, ReceivedProgram] = {}
        # Beside the connection's thread, which must go on saying that it lives.
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")

    @property
    def told(self) -> tuple[HeldProgram, ...]:
        """What the server hears: of each that is loaded, or cannot be."""
        return tuple(each.told for each in self._programs.values() if each.told is not None)

    def find(self, serial: int) -> Servable | None:
        """The loaded program; any thread may call this."""
        program = self._programs.get(serial)
        return program.servable if program is not None else None

    def ask(self) -> None:
        """For pieces that are missing, a few ahead."""
        for program in self._programs.values():
            self._ask_pieces(program)

    def close(self) -> None:
        self._loading.shutdown(wait=False, cancel_futures=True)

    def want(self, programs: tuple[WantedProgram, ...]) -> None:
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
                path = self._folder / str(serial) / Path(each.file).name  # errors name the file as the user does
                path.parent.mkdir()
                path.touch()
                program = self._programs[serial] = ReceivedProgram(each, path)
                if not each.size:
                    self._loading.submit(self._load, program)  # which says what is wrong with an empty file

    def _ask_pieces(self, program: ReceivedProgram) -> None:
        if program.come < program.wanted.size and now() - program.moved > AGAIN:  # a connection took them with it
            program.asked, program.moved = program.come, now()
        while program.asked < program.wanted.size and program.asked < program.come + AHEAD * PIECE:
            self._say(AskProgram(program.wanted.serial, program.asked))
            program.asked += PIECE

    def take(self, word: ProgramPiece, data: bytes) -> None:
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
