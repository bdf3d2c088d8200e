"""Tables on servers in a checkpoint: every worker writes a part of their rows, block by block, and nobody holds more.

    worker-1.rows   | length of head | head: table, sizes of arrays | row numbers | values | slots … |   again and again

Only rows that somebody has used are in it, by their number in the table, so any number of workers and servers can go on
from it. All workers wait until all parts are read, because a push in between would be in some rows and not in others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from shoal.core.disk import Buffer
from shoal.core.errors import LayoutError
from shoal.train.checkpoint.manifest import CheckpointDamaged
from shoal.train.joined import JoinedModels

LENGTH = 4
LARGEST_HEAD, LARGEST_BLOCK = 1 << 16, 1 << 30


class RowBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a block."""

    table: str
    sizes: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=LARGEST_BLOCK)]], msgspec.Meta(min_length=2, max_length=8)
    ]
    """Bytes of row numbers, values and slots."""


def has_tables(joined: Sequence[JoinedModels]) -> bool:
    """Whether a checkpoint has to bring something from servers: tables, or parameters that lie there."""
    return any(one.served is not None for one in joined)


def write_blocks(joined: Sequence[JoinedModels], part: int, parts: int) -> Iterator[Buffer]:
    """The bytes of one worker's part of all tables."""
    for number, one in enumerate(joined):
        for name in one.members.tables:
            client = one.members.tables[name].client
            assert client is not None
            for arrays in client.read(part, parts):
                data = [memoryview(np.frombuffer(array, np.uint8)) for array in arrays]  # type: ignore[arg-type]
                head = msgspec.json.encode(RowBlock(f"{number}.{name}", [len(each) for each in data]))
                yield len(head).to_bytes(LENGTH, "little") + head
                yield from data


def load_blocks(path: Path, one: JoinedModels, number: int) -> None:
    """Give the tables of join `number` the rows of one file. LayoutError: the model has no such table."""
    with path.open("rb") as file:
        while length := file.read(LENGTH):
            head = _read_head(path, file.read(min(LARGEST_HEAD, int.from_bytes(length, "little"))))
            arrays = [file.read(size) for size in head.sizes]
            if [len(array) for array in arrays] != head.sizes:
                raise CheckpointDamaged(f"{path.parent.name}/{path.name} ends in the middle of a block")
            join, _, name = head.table.partition(".")
            if join == str(number):
                _load(path, one, name, arrays)


def _read_head(path: Path, data: bytes) -> RowBlock:
    try:
        return msgspec.json.decode(data, type=RowBlock)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointDamaged(f"{path.parent.name}/{path.name} holds what is no block of rows: {error}") from None


def _load(path: Path, one: JoinedModels, name: str, arrays: Sequence[Any]) -> None:
    table = one.members.tables.get(name)
    if table is None or table.client is None:
        raise LayoutError(f"the checkpoint has rows of a table {name!r}, and the model has none; has it changed since?")
    rows = np.frombuffer(arrays[0], np.int64)
    values = [np.frombuffer(array, np.float32) for array in arrays[1:]]
    if any(each.size != len(rows) * table.embedding_dim for each in values) or (
        len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < table.num_embeddings
    ):
        raise LayoutError(
            f"the rows of table {name!r} in {path.parent.name}/{path.name} are not those of "
            f"{table.num_embeddings} x {table.embedding_dim}; has the model changed since?"
        )
    table.client.load(rows, values)
