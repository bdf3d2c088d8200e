"""A sum over the view of one flat array per worker. What leaves is never written, so it can be summed again."""

from collections.abc import Sequence

from shoal.cluster.links.frames import Array, Payload
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Task
from shoal.sync.engine.sums.arithmetic import Arithmetic


class Sum(Task):
    """`leaving` is this worker's array; `result` is filled piece by piece, and whole when the task is done."""

    def __init__(self, leaving: Array, result: Array, arithmetic: Arithmetic) -> None:
        super().__init__(leaving.nbytes)
        self.leaving, self.result, self.arithmetic = leaving, result, arithmetic
        self._seen: set[tuple[int, int, int]] = set()

    def place(self, sender: int, chunk: Chunk, slices: Sequence[slice]) -> slice:
        """Where a piece belongs, if there is such a piece and it comes for the first time."""
        key = (sender, chunk.phase, chunk.index)
        if chunk.index >= len(slices) or key in self._seen:
            again = " again" if key in self._seen else ""
            raise Refused(f"worker {sender} sends piece {chunk.index} of {len(slices)}{again} in a {self.kind}")
        self._seen.add(key)
        return slices[chunk.index]

    def check(self, sender: int, payload: Payload, numel: int) -> Array:
        """What came, if it is as long as what belongs there."""
        if payload.shape != (numel,) or payload.dtype != self.arithmetic.name:
            raise Refused(
                f"worker {sender} sends {payload.shape} of {payload.dtype}, not {numel} of {self.arithmetic.name}"
            )
        return payload.array


def part(numel: int, parts: int, number: int) -> tuple[int, int]:
    """Begin and end of the `number`-th of `parts` nearly equal parts."""
    return numel * number // parts, numel * (number + 1) // parts


def pieces(begin: int, end: int, chunk: int) -> list[slice]:
    return [slice(at, min(at + chunk, end)) for at in range(begin, end, chunk)]
