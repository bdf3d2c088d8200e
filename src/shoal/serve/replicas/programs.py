"""The programs that a server has its replicas hold: copies of files, and what the first replica said of them."""

import hashlib
import secrets
import shutil
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from shoal.serve.errors import PredictFailed
from shoal.serve.replicas.protocol import PIECE, AskProgram, HeldProgram, WantedProgram, WantedPrograms, specs_of_wire
from shoal.serve.tensors import Tensors, TensorSpec, datatype_of, fits


@dataclass(eq=False)
class SharedProgram:
    """A program that replicas hold; `specs` are there once the first of them has loaded it."""

    wanted: WantedProgram
    path: Path
    specs: "Future[tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]" = field(default_factory=Future)


class SharedPrograms:
    """Any thread may call it; `folder` keeps the copies."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._serials = secrets.randbits(40)  # another server's programs must not be taken for these
        self._programs: dict[int, SharedProgram] = {}

    def hold(self, path: Path) -> SharedProgram:
        """Have every replica load a copy of the file."""
        with self._lock:
            self._serials += 1
            serial = self._serials
        copy = self._folder / str(serial)
        # A copy, because the caller's file may be temporary and replicas that come later ask for it too.
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            # Of the copy, because that is what replicas get.
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        program = SharedProgram(WantedProgram(serial, path.name, copy.stat().st_size, digest), copy)
        with self._lock:
            self._programs[serial] = program
        return program

    def release(self, program: SharedProgram) -> None:
        with self._lock:
            self._programs.pop(program.wanted.serial, None)
        program.path.unlink(missing_ok=True)

    @property
    def wanted(self) -> WantedPrograms:
        with self._lock:
            return WantedPrograms(tuple(each.wanted for each in self._programs.values()))

    def find(self, serial: int) -> SharedProgram | None:
        with self._lock:
            return self._programs.get(serial)

    def usable(self, held: tuple[HeldProgram, ...]) -> frozenset[int]:
        """Serials of what a replica says it holds, as far as it fits."""
        return frozenset(each.serial for each in held if self._is_usable(each))

    def _is_usable(self, held: HeldProgram) -> bool:
        """Whether a replica holds what it should; the first that does says what the program takes and gives."""
        program = self.find(held.serial)
        if program is None:
            return False
        specs = specs_of_wire(held.inputs), specs_of_wire(held.outputs)
        if not program.specs.done():
            if held.error:
                program.specs.set_exception(PredictFailed(held.error))
            else:
                program.specs.set_result(specs)
        return not held.error and program.specs.exception(0) is None and program.specs.result(0) == specs

    def read_piece(self, asked: AskProgram) -> bytes:
        """Empty where it is not wanted any more, as the replica will hear."""
        program = self.find(asked.serial)
        if program is None:
            return b""
        try:
            with program.path.open("rb") as file:
                file.seek(min(asked.at, program.wanted.size))
                return file.read(PIECE)
        except FileNotFoundError:
            return b""


def check_outputs(program: SharedProgram, outputs: Tensors) -> None:
    """ValueError unless they are what the program gives."""
    wanted = {each.name: each for each in program.specs.result(0)[1]}
    for name, array in outputs.items():
        spec = wanted.get(name)
        if spec is None or datatype_of(array) != spec.datatype or not fits(spec.shape, array.shape):
            raise ValueError(f"output {name[:80]!r} of shape {list(array.shape)} is not what the program gives")
    if len(outputs) < len(wanted):
        raise ValueError(f"{len(outputs)} outputs of {len(wanted)}")
