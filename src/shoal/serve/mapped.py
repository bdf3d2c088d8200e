"""ONNX programs whose weights several processes share: packed once, then mapped by each.

ONNX Runtime copies the weights of a program into its own layout when it loads one, so that N processes hold them N
times. Here the first process writes the optimized program and the packed weights to files; the others, and every
later start, map these. Mapped pages are the kernel's: read-only as far as anybody else can see, and held once.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

PROGRAM, WEIGHTS = "program.onnx", "weights.bin"
ALIGNMENT = 64
"""Bytes of a cache line, which packed weights must begin at."""
LEAST_BYTES = "1024"
"""Smaller tensors stay in the program."""


class MappedPrograms:
    """Files in a folder of the server's own, by the SHA-256 of the program; made under a lock, then never changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, program: Path, runtime: Any) -> Path:
        """The program that maps its weights; made now if no process has made it."""
        with program.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        place = self._folder / digest
        if not (place / PROGRAM).is_file():
            self._make_once(program, place, runtime)
        return place / PROGRAM

    def _make_once(self, program: Path, place: Path, runtime: Any) -> None:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # goes with a process that is killed
            if (place / PROGRAM).is_file():
                return
            scratch = Path(tempfile.mkdtemp(dir=self._folder, prefix="part-"))
            try:
                _write(program, scratch, runtime)
                # Renamed when complete: readers look without the lock and must find all of it or nothing.
                os.rename(scratch, place)
            except BaseException:
                # Only a process that is killed leaves it behind; then it goes with the server's folder.
                shutil.rmtree(scratch, ignore_errors=True)
                raise


def _write(program: Path, folder: Path, runtime: Any) -> None:
    """With packed weights, unless ONNX Runtime put some where its own kernels cannot read them.

    It writes packed weights right behind the tensor they are of. Kernels read them with instructions that need a
    multiple of the cache line, and a process that maps them elsewhere is killed by SIGSEGV. Without them every process
    packs its own, and only the weights as they are in the program are shared.
    """
    _optimize(program, folder, runtime, packed=True)
    if not is_aligned(folder / PROGRAM):
        for each in folder.iterdir():
            each.unlink()
        _optimize(program, folder, runtime, packed=False)


def is_aligned(program: Path) -> bool:
    """Whether all packed weights begin at a multiple of `ALIGNMENT`; entries are `KERNEL+HASH|OFFSET;LENGTH;FLAG|…`."""
    import onnx

    model = onnx.load(str(program), load_external_data=False)
    entries = (entry for each in model.graph.initializer for entry in each.external_data)
    blobs = (blob for entry in entries if entry.key.startswith("prepacked") for blob in entry.value.split("|")[1:])
    return all(int(blob.split(";")[0]) % ALIGNMENT == 0 for blob in blobs)


def _optimize(program: Path, folder: Path, runtime: Any, *, packed: bool) -> None:
    options = runtime.SessionOptions()
    # The program is only written here, not asked.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # it warns that the files fit this machine alone, which is all they are for
    options.optimized_model_filepath = str(folder / PROGRAM)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", WEIGHTS),
        ("session.optimized_model_external_initializers_min_size_in_bytes", LEAST_BYTES),
        ("session.save_external_prepacked_constant_initializers", "1" if packed else "0"),
    ):
        options.add_session_config_entry(key, value)
    runtime.InferenceSession(str(program), options, providers=["CPUExecutionProvider"])
