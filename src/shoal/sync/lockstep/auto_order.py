"""As `needed`, but only if that is faster: `order(auto)`.

    exchanges 1, 2        not measured: allocations, caches
    exchanges 3 … 14      in turns: all is waited for when the pass has ended (ready), or layer by layer (needed)
    exchange 15           every worker's medians travel with its word, and are added up by the exchange itself
    from 16 on            the faster of the two, which all compute alike from the same bits

A step lasts from the first gradient of one backward pass to that of the next: what `needed` waits for in the forward
pass is in it. Do not use it where members may be lost, even if it chose `ready`: see needed.py.
"""

import statistics
from collections.abc import Sequence

from torch import Tensor

from shoal.sync.exchange.base import GradientExchange
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.sync.observer import CodecSwitched

SKIPPED, TURNS = 2, 6
"""Exchanges that are not measured, and those of either kind that are."""
TOLD = SKIPPED + 2 * TURNS + 1
GAIN = 0.97
"""What a step must come to when gradients are waited for layer by layer: it costs a round trip and a watch on each."""
NAMES = ("order(ready)", "order(needed)")


class AutoOrderSynchronizer(NeededOrderSynchronizer):
    """Over an engine that works in the background, with members that stay."""

    figures = len(NAMES)

    def __init__(self, exchange: GradientExchange) -> None:
        super().__init__(exchange)
        self.defers = False
        """Whether layers are waited for one by one in this step."""
        self._count = 0
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._chosen: bool | None = None

    def backward_began(self) -> None:
        before = self._began
        super().backward_began()
        if SKIPPED < self._count < TOLD:
            self._seconds[self.defers].append(self._began - before)
        self._count += 1
        self.defers = self._chosen if self._chosen is not None else self._turn()
        self.exchange.set_priorities(self._urgencies if self.defers else [0] * len(self._urgencies))

    def _turn(self) -> bool:
        """Which of the two this exchange is, while they are compared."""
        return SKIPPED < self._count < TOLD and (self._count - SKIPPED) % 2 == 0

    def deliver(self) -> None:
        super().deliver()
        if not self.defers:
            self.settle()

    def said(self) -> list[float]:
        told = self._count == TOLD
        return [statistics.median(seconds) if told else 0.0 for seconds in self._seconds]

    def heard(self, figures: Tensor) -> None:
        if self._count == TOLD:
            self._chosen = choose(figures.tolist())
            workers = len(self.exchange.peers) + 1
            steps = {name: total / workers for name, total in zip(NAMES, figures.tolist(), strict=True)}
            ready, needed = (f"{1e3 * seconds:.1f} ms" for seconds in steps.values())
            self.exchange.observer.report(
                CodecSwitched(NAMES[self._chosen], f"a step takes {needed} layer by layer, {ready} otherwise", steps)
            )


def choose(totals: Sequence[float]) -> bool:
    """Whether to wait layer by layer, by the seconds of either, added up over the workers."""
    ready, needed = totals
    return needed <= GAIN * ready
