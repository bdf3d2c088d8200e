"""Reads one old `.pt` file and writes its tensors as safetensors: alone in a process that can do nothing else.

    python -m shoal.train.checkpoint.legacy FILE.pt OUT.safetensors

A `.pt` file is a pickle, which may ask for code to be run. `weights_only` refuses that; should it ever fail to, the
process sits in a sandbox (sandbox.py) with two open files: the one it reads and the one it writes. `shoal import`
starts it, and gives OUT its name only if it ended well; nothing else in Shoal reads such files.
"""

import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.train.checkpoint import sandbox
from shoal.train.checkpoint.shard import ShardError, pieces

EXIT_REFUSED = 3


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dictionaries and lists, named by the way to them."""
    if isinstance(value, Tensor):
        yield name or "tensor", value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from tensors_of(item, f"{name}.{number}" if name else str(number))


def convert(source: Path, target: Path) -> int:
    """As `convert_file`, by path."""
    with source.open("rb") as reading, io.BytesIO() as found:
        number = convert_file(reading, found, source.name)
        target.write_bytes(found.getvalue())
    return number


def convert_file(source: IO[bytes], target: IO[bytes], name: str) -> int:
    """How many tensors went from `source` to `target`; UsageError if it holds none, or more than tensors."""
    try:
        found = dict(tensors_of(torch.load(source, map_location="cpu", weights_only=True)))
    except Exception as error:  # noqa: BLE001  (whatever a hostile file makes torch raise)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"{name} is refused: {reason}") from None
    if not found:
        raise UsageError(f"{name} holds no tensors")
    try:
        for piece in pieces({name: tensor.contiguous() for name, tensor in found.items()}):
            target.write(piece)
        target.flush()
    except (OSError, ShardError) as error:
        raise UsageError(f"cannot write the tensors of {name}: {error}") from None
    return len(found)


def rehearse() -> None:
    """Read small files, good and bad: what torch imports on the way is imported before no file can be opened."""
    values = {"a": torch.nn.Parameter(torch.zeros(2, 2)), "b": [torch.zeros(1, dtype=torch.bfloat16)]}
    for content in (values, {"c": Path("refused")}):
        for new in (True, False):
            file = io.BytesIO()
            torch.save(content, file, _use_new_zipfile_serialization=new)
            try:
                convert_file(io.BytesIO(file.getvalue()), io.BytesIO(), "")
            except UsageError:
                continue


def main() -> None:
    torch.set_num_threads(1)  # before processes, and so threads, are forbidden
    rehearse()
    source = Path(sys.argv[1])
    with source.open("rb") as reading, Path(sys.argv[2]).open("wb") as writing:
        missing = sandbox.enter()
        if missing:
            sys.stderr.write(f"shoal: note: this system lacks {', '.join(missing)}; see docs/checkpoints.md\n")
        try:
            number = convert_file(reading, writing, source.name)
            os.fsync(writing.fileno())
        except UsageError as error:
            sys.stderr.write(f"shoal: {error}\n")
            sys.stderr.flush()
            os._exit(EXIT_REFUSED)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
