"""Reads one old `.pt` file and writes its tensors as safetensors: alone in a process that has nothing to lose.

    python -m shoal.train.checkpoint.legacy FILE.pt OUT.safetensors

A `.pt` file is a pickle, which may ask for code to be run. `weights_only` refuses that; should it ever fail to, the
process has no network, writes one file and ends. `shoal import` starts it; nothing else in Shoal reads such files.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.train.checkpoint.shard import ShardError, pieces

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
EXIT_REFUSED = 3


def lock_in() -> bool:
    """Leave the network, where the system lets us; start no process any more. True if the network is gone."""
    gone = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, most))
    return bool(gone)


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
    """How many tensors went from `source` to `target`; UsageError if it holds none, or more than tensors."""
    try:
        found = dict(tensors_of(torch.load(source, map_location="cpu", weights_only=True)))
    except Exception as error:  # noqa: BLE001  (whatever a hostile file makes torch raise)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"{source.name} is refused: {reason}") from None
    if not found:
        raise UsageError(f"{source.name} holds no tensors")
    try:
        write_file(target, b"".join(pieces({name: tensor.contiguous() for name, tensor in found.items()})))
    except (OSError, ShardError) as error:
        raise UsageError(f"cannot write {target.name}: {error}") from None
    return len(found)


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    torch.set_num_threads(1)  # before processes, and so threads, are forbidden
    if not lock_in():
        sys.stderr.write("shoal: note: this system does not let a process leave the network\n")
    try:
        number = convert(source, target)
    except UsageError as error:
        sys.stderr.write(f"shoal: {error}\n")
        os._exit(EXIT_REFUSED)
    sys.stdout.write(f"{number}\n")


if __name__ == "__main__":
    main()
