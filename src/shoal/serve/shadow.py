"""Copies of requests for a version that is tried: asked after the client has its answer, and compared with it."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from shoal.serve.errors import RequestError
from shoal.serve.tensors import Array, Tensors

MOST_COPIES = 64
"""Copies under way; more are left out, because a version that no client waits for must not fill the memory."""
TOLERANCE = 1e-3
"""Relative difference at which two numbers still agree."""


def agreeing_rows(ours: Tensors, theirs: Tensors) -> tuple[int, int]:
    """Of how many samples the answers agree: the same largest class, or where there are no classes, close numbers."""
    rows = max((len(each) for each in ours.values() if each.ndim), default=1)
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
        return 0, rows
    same = np.ones(rows, dtype=bool)
    for name, array in ours.items():
        found = _same(array, theirs[name])
        same &= found if found.shape == (rows,) else bool(found.all())
    return int(same.sum()), rows


def _same(a: Array, b: Array) -> Array:
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    # V is the kind of bfloat16, which numpy itself does not know.
    if a.dtype.kind in "fV" and a.ndim == 2 and a.shape[1] > 1:
        return np.asarray(a.argmax(axis=1) == b.argmax(axis=1))
    equal = np.isclose(a, b, rtol=TOLERANCE, equal_nan=True) if a.dtype.kind in "fV" else a == b
    return np.asarray(np.asarray(equal).reshape(len(a), -1).all(axis=1))


class ShadowCopies:
    """Asks in tasks of its own; what goes wrong is in the counts of the version."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, ask: Callable[[], Awaitable[Tensors]], answer: Tensors, count: Callable[[int, int], None]) -> None:
        """Ask, and `count` the samples that agree with `answer` and those compared."""
        if len(self._tasks) < MOST_COPIES:
            task = asyncio.get_running_loop().create_task(self._compare(ask, answer, count))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compare(
        self, ask: Callable[[], Awaitable[Tensors]], answer: Tensors, count: Callable[[int, int], None]
    ) -> None:
        try:
            count(*agreeing_rows(answer, await ask()))
        except RequestError:
            return  # counted as the version's failure

    async def drain(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
