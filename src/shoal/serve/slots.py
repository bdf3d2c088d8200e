"""How many batches the models of one process compute at the same time: no more than it has cores.

More would take turns on the cores, each slower, and each with fewer samples, because requests that come while a model
computes are what its next batch is made of. Where the models take turns instead, a batch has all that came in a turn.
"""

from collections import deque
from collections.abc import Callable


class ComputeSlots:
    """Used on one event loop, by all batchers of a process."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_free(self) -> bool:
        return self._free > 0

    def take(self) -> None:
        """Below zero where a batcher has waited long enough and starts without a slot."""
        self._free -= 1

    def release(self) -> None:
        """Wake those that wait, in turn, as long as slots are left."""
        self._free += 1
        while self._free > 0 and self._waiting:
            self._waiting.popleft()()

    def wake_later(self, wake: Callable[[], None]) -> None:
        """Call `wake` once a slot is free; asked again by a batcher that waits already, it changes nothing."""
        # Or a batcher that waits long would be woken several times in a row.
        if wake not in self._waiting:
            self._waiting.append(wake)
