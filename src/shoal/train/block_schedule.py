"""Scheduled model parallelism: in every step a few blocks of variables are updated, each by one worker.

    schedule    draw(state): the blocks that change most, none two of which depend on each other      all workers alike
    update      share(drawn, rank, size): this worker computes the changes of its blocks alone
    aggregate   run.exchange() and the optimizer add up the changes; advance(state, changes) learns from them

A draw is a function of the state alone, and the state follows from what was exchanged, so all workers draw the same
blocks without a message. With the changes travels one mark per block. A block whose worker was lost before its change
was added up has no mark, so it keeps its priority and is drawn again.

Lee et al., "On Model Parallelization and Scheduling Strategies for Distributed Machine Learning", NIPS 2014 (STRADS);
Kim et al., EuroSys 2016. Do not use it where a gradient of all variables costs little more than that of a block, as
in most deep networks: there data parallelism updates all of them in the same time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError

Dependence = Callable[[int, Sequence[int]], Tensor]
"""(block, others): how much the block depends on each of the others, as absolute values."""
ScheduleState = dict[str, Any]
"""What a schedule remembers, in the form that `run.state` takes."""
ORDERS = ("priority", "turn")
CANDIDATES = 8
"""Blocks that are looked at for each one that is drawn: dependent ones are passed over."""
EXPLORING = 4
"""Under priority, one block in so many is drawn because it has waited longest, so that none is forgotten."""
LEAST_PRIORITY = 1e-5
"""Share of the largest priority that every block has at least."""


class BlockSchedule(nn.Module):
    """Joined like a model, with `loss="sum"`: its one parameter carries the marks. Its state lies in `run.state`."""

    def __init__(
        self,
        blocks: int,
        width: int,
        *,
        dependence: Dependence | None = None,
        threshold: float = 0.5,
        order: str = "priority",
        delay: int = 0,
        seed: int = 0,
    ) -> None:
        """`width`: blocks of a step, at most. No two of them depend on each other by more than `threshold`.

        `order`: `priority` draws a block the likelier the more it changed last, and in every step the one that has
        waited longest, so that none is forgotten; `turn` draws those that have waited longest. `delay`: k under
        `stale(k)`, where blocks of the last k steps are still being exchanged: what is drawn does not depend on them
        either.
        """
        super().__init__()
        if not 1 <= width <= blocks:
            raise UsageError(f"BlockSchedule(blocks={blocks}, width={width}): use 1 <= width <= blocks")
        if order not in ORDERS:
            raise UsageError(f"BlockSchedule(order={order!r}): use {' or '.join(map(repr, ORDERS))}")
        if delay < 0 or not threshold >= 0:
            raise UsageError(f"BlockSchedule(threshold={threshold}, delay={delay}): neither may be negative")
        self.blocks, self.width, self.order, self.delay, self.seed = blocks, width, order, delay, seed
        self.dependence, self.threshold = dependence, threshold
        self.marks = nn.Parameter(torch.zeros(blocks, dtype=torch.float64))
        self._arrived: Tensor | None = None

    def first_state(self) -> ScheduleState:
        """Nothing was updated yet: `state = run.state(step=0, schedule=schedule.first_state())`."""
        waiting = torch.full((self.blocks,), -1, dtype=torch.int64)
        return {"step": 0, "priorities": torch.zeros(self.blocks, dtype=torch.float64), "updated": waiting, "late": []}

    def draw(self, state: ScheduleState) -> list[int]:
        """Return the blocks of the next step, the same on all workers; fewer than `width` if too many depend."""
        late = [block for blocks in state["late"] for block in blocks]
        drawn: list[int] = []
        for block in self._candidates(state):
            if block not in late and self._is_independent(block, drawn + late):
                drawn.append(block)
                if len(drawn) == self.width:
                    break
        return drawn

    def _candidates(self, state: ScheduleState) -> list[int]:
        updated = state["updated"].numpy()
        # stable, because all workers must draw the same
        waiting = np.argsort(updated, kind="stable")
        if self.order == "turn":
            return [int(block) for block in waiting]
        draws = np.random.Generator(np.random.PCG64([self.seed, state["step"]])).random(self.blocks)
        priorities = state["priorities"].numpy()
        weights = priorities / (priorities.max() or 1.0) + LEAST_PRIORITY
        # a weighted sample without replacement: the largest of u^(1/w) (Efraimidis and Spirakis, 2006)
        keys = np.log1p(-draws) / weights
        keys = np.where(updated < 0, draws, keys)  # nobody knows yet how much these change: they go first
        most = min(self.blocks, CANDIDATES * self.width * (1 + self.delay))
        likely = np.argsort(-keys, kind="stable")[:most]
        return list(dict.fromkeys(map(int, (*waiting[: max(1, self.width // EXPLORING)], *likely))))

    def _is_independent(self, block: int, others: Sequence[int]) -> bool:
        if self.dependence is None or not others:
            return True
        return bool((self.dependence(block, others) <= self.threshold).all())

    def share(self, drawn: Sequence[int], rank: int, size: int) -> list[int]:
        """Return the blocks of one worker, and mark them in what is exchanged next."""
        mine = list(drawn[rank::size])
        self.marks.grad = torch.zeros_like(self.marks, requires_grad=False)
        self.marks.grad[mine] = 1.0
        return mine

    def watch(self, optimizer: Optimizer, gradients: Callable[[int], Iterable[Tensor]]) -> None:
        """Count in every step of `optimizer` which blocks' changes have arrived; call it once, after `run.join`.

        Workers that enter or leave in a step share it out by different numbers of workers, so several may update a
        block, all by the same change. `gradients(block)` returns the parts of `p.grad` that such a sum is divided in.
        """
        self._gradients = gradients
        optimizer.register_step_pre_hook(self._count)

    def _count(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        marks = self.marks.grad
        there = any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        if marks is None or not there:  # the first steps under stale(k), or one that all skip
            self._arrived = torch.zeros(self.blocks, dtype=torch.bool)
            return
        # under loss="mean" a mark is divided by the number of workers
        if 0.01 < (most := float(marks.max())) < 0.75:
            raise UsageError(f"the mark of a block is {most:.2f}, not 1; join schedule and model with loss='sum'")
        for block in (marks > 1.5).nonzero().flatten().tolist():
            for part in self._gradients(block):
                part /= marks[block].round()
        self._arrived = marks > 0.5

    def advance(self, state: ScheduleState, drawn: Sequence[int], changes: Tensor) -> ScheduleState:
        """Return the state after a step, in which `optimizer.step()` changed block i by `changes[i]`.

        Under `stale(k)` what has arrived are changes of k steps before; marks tell of which blocks.
        """
        if changes.shape != (self.blocks,):
            raise UsageError(f"advance(): {list(changes.shape)} changes; give one for each of {self.blocks} blocks")
        if self._arrived is None:
            raise UsageError("advance() before a step; call schedule.watch(optimizer, …) after run.join()")
        arrived = self._arrived
        priorities, updated = state["priorities"].clone(), state["updated"].clone()
        priorities[arrived] = changes.detach().to(torch.float64).abs()[arrived]
        updated[arrived] = state["step"]
        late = [*state["late"], list(drawn)][-self.delay :] if self.delay else []
        return {"step": state["step"] + 1, "priorities": priorities, "updated": updated, "late": late}
