"""Pieces dealt over links: everybody gets what everybody has for it, of any length."""

from pathlib import Path

import numpy as np
import pytest
from meshes import WAIT, meshes

from shoal.core.errors import ShoalError
from shoal.transport.collectives import AllToAll
from shoal.transport.messages import CHUNK


@pytest.mark.parametrize("size", [2, 3])
def test_everybody_gets_its_pieces_in_order_of_rank(size: int, tmp_path: Path) -> None:
    lengths = [0, 1, CHUNK + 5]
    with meshes(size, tmp_path) as made:
        for length in lengths:
            tasks = []
            for mesh in made:
                # senders may differ in length; the pieces of one do not
                pieces = np.array([[10 * mesh.rank + to] * (length + mesh.rank) for to in range(size)], np.uint8)
                tasks.append(AllToAll(pieces.reshape(size, -1), 2 * CHUNK))
                mesh.submit(tasks[-1])
            for mesh, task in zip(made, tasks, strict=True):
                mesh.wait(task, WAIT)
                assert task.result == [bytes([10 * r + mesh.rank]) * (length + r) for r in range(size)]


def test_pieces_for_others_than_the_members_are_refused(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        task = AllToAll(np.zeros((3, 4), np.uint8), 10)
        made[0].submit(task)
        with pytest.raises(ShoalError, match="3 pieces of 4 bytes among 2 workers"):
            made[0].wait(task, WAIT)
