"""A sum over the view of one flat array per worker. What leaves is never written, so it can be summed again."""

from shoal.cluster.links.frames import Array, Payload
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Task
from shoal.sync.engine.sums.arithmetic import Arithmetic


class Sum(Task):
    """`leaving` is this worker's array; `result` is filled piece by piece, and whole when the task is done."""

    def __init__(self, leaving: Array, result: Array, arithmetic: Arithmetic) -> None:
        super().__init__(leaving.nbytes)
        self.leaving, self.result, self.arithmetic = leaving, result, arithmetic

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
