"""The batcher in virtual time: what is asserted about seconds is computed, not measured."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from served import MemorySource, Scaled, core_of, x
from virtual_time import run_virtual

from shoal.serve.batcher import NORMAL, BatchSettings, RequestBatcher
from shoal.serve.errors import DeadlinePassed, PredictFailed, RequestError, ServerBusy
from shoal.serve.metrics import VersionMetrics
from shoal.serve.sizing import BatchSizer, FixedSizer, SizingPolicy
from shoal.serve.slots import ComputeSlots
from shoal.serve.tensors import Tensors

ONE = {"x": np.zeros((1, 1), np.float32)}


@dataclass
class TimedModel:
    """Takes `fixed` seconds for a batch and `each` for a sample, of virtual time; jitter is a seeded share of that.

    `stall` gives what other processes add to each batch.
    """

    fixed: float = 0.004
    each: float = 0.0001
    jitter: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    sizes: list[int] = field(default_factory=list)
    stall: Callable[[random.Random], float] = lambda chance: 0.0

    async def __call__(self, inputs: Tensors) -> Tensors:
        rows = len(inputs["x"])
        self.sizes.append(rows)
        computing = (self.fixed + self.each * rows) * (1 + self.jitter * self.chance.random())
        await asyncio.sleep(computing + self.stall(self.chance))
        return {"y": inputs["x"] * 2}


@dataclass
class LoadResult:
    answered: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.answered / self.seconds

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def batcher_of(model: Callable, sizer: SizingPolicy, **settings: float) -> RequestBatcher:  # type: ignore[type-arg]
    return RequestBatcher(model, sizer, BatchSettings(**settings), VersionMetrics())  # type: ignore[arg-type]


async def one(batcher: RequestBatcher, result: LoadResult, patience: float) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await batcher.submit(ONE, 1, began + patience)
    except (ServerBusy, DeadlinePassed):
        result.refused += 1
    else:
        result.answered += 1
        result.latencies.append(clock() - began)


def closed_load(
    sizer: SizingPolicy, clients: int, model: TimedModel, seconds: float = 2.0, warm: float = 0.0, **settings: float
) -> LoadResult:
    """So many clients, each asking again as soon as it is answered; counted after `warm` seconds."""

    async def main() -> LoadResult:
        batcher, result, ignored = batcher_of(model, sizer, **settings), LoadResult(), LoadResult()
        clock = asyncio.get_running_loop().time

        async def client() -> None:
            while clock() < seconds:
                await one(batcher, result if clock() >= warm else ignored, 60.0)

        await asyncio.gather(*(client() for _ in range(clients)))
        result.seconds = clock() - warm
        return result

    return run_virtual(main())


def open_load(
    sizer: SizingPolicy, model: TimedModel, rate: float, seconds: float, patience: float, warm: float = 0.0
) -> LoadResult:
    """Requests at random moments, `rate` a second, whether answered or not; counted after `warm` seconds."""

    async def main() -> LoadResult:
        batcher, result, ignored = batcher_of(model, sizer, queue=4096), LoadResult(), LoadResult()
        loop, chance, tasks = asyncio.get_running_loop(), random.Random(3), []
        while loop.time() < seconds:
            await asyncio.sleep(chance.expovariate(rate))
            tasks.append(loop.create_task(one(batcher, result if loop.time() > warm else ignored, patience)))
        await asyncio.gather(*tasks)
        result.seconds = seconds - warm
        return result

    return run_virtual(main())


class TestThroughput:
    def test_32_clients_get_three_times_the_answers_within_delay_and_two_batches(self) -> None:
        delay, model = 0.002, TimedModel()
        alone = closed_load(FixedSizer(1), 32, model)
        together = closed_load(BatchSizer(goal=0.05, most=64), 32, model, delay=delay)
        assert together.rate >= 3 * alone.rate
        compute = model.fixed + 32 * model.each
        assert together.quantile(0.99) <= delay + 2 * compute  # the batch before its own, and its own

    def test_32_requests_that_wait_are_computed_together(self) -> None:
        """The same on the real clock and real threads, counted."""
        gate = asyncio.Event()
        sizes: list[int] = []

        async def main() -> None:
            async def model(inputs: Tensors) -> Tensors:
                sizes.append(len(inputs["x"]))
                await gate.wait()
                return {"y": inputs["x"]}

            batcher = batcher_of(model, BatchSizer(1.0, 64, limit=32.0))
            deadline = asyncio.get_running_loop().time() + 60
            tasks = [asyncio.create_task(batcher.submit(ONE, 1, deadline)) for _ in range(33)]
            while len(sizes) < 1 or batcher.queued < 32:
                await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert sizes == [1, 32]

    def test_a_fixed_size_of_one_is_no_batching(self) -> None:
        servable = Scaled()
        core = core_of(MemorySource("m", {1: lambda: servable}))
        core._batchers._sizer = lambda servable: FixedSizer(1)  # type: ignore[method-assign]

        async def main() -> None:
            await asyncio.gather(*(core.infer("m", x()) for _ in range(20)))
            await core.close()

        asyncio.run(main())
        assert servable.calls == [1] * 20


class TestGoal:
    """Clipper: p99 under the goal, and within a tenth of the best fixed size that keeps it."""

    GOAL = 0.5

    def model(self) -> TimedModel:
        return TimedModel(fixed=0.04, each=0.004, jitter=0.05)

    def closed(self, sizer: SizingPolicy) -> LoadResult:
        return closed_load(sizer, 90, self.model(), 20.0, warm=5.0)

    def test_p99_under_the_goal_and_within_a_tenth_of_the_best_fixed_size(self) -> None:
        """Nobody is refused: clients wait as long as it takes."""
        fixed = [self.closed(FixedSizer(size)) for size in (8, 16, 32, 45, 64, 90)]
        best = max(found.rate for found in fixed if found.quantile(0.99) <= self.GOAL)
        found = self.closed(BatchSizer(self.GOAL, 1024))
        assert found.refused == 0
        assert found.quantile(0.99) <= self.GOAL
        assert found.rate >= 0.9 * best
        assert fixed[0].rate < 0.7 * best  # the size matters

    def test_under_twice_the_capacity_most_of_it_is_still_answered(self) -> None:
        capacity = 50 / ((0.04 + 50 * 0.004) * 1.025)  # of batches that take half of the goal
        found = open_load(BatchSizer(self.GOAL, 1024), self.model(), 2 * capacity, 16.0, 2.0, warm=4.0)
        assert found.rate >= 0.9 * capacity
        assert found.refused > 0
        assert max(found.latencies) <= 2.0


BUSY_CORES: dict[str, Callable[[random.Random], float]] = {
    "60 ms always": lambda chance: 0.06,
    "mean of 70 ms": lambda chance: chance.expovariate(1 / 0.07),
    "97 of 100 take 80 ms": lambda chance: 0.08 if chance.random() < 0.97 else 0.0,
    "heavy tail": lambda chance: 0.02 * chance.paretovariate(1.2),
}


class TestBusyCores:
    """Each batch waits for the cores longer than half of the goal: no size can meet it, and small ones lose most."""

    @pytest.mark.parametrize("stall", BUSY_CORES.values(), ids=BUSY_CORES.keys())
    def test_within_a_tenth_of_the_best_fixed_size(self, stall: Callable[[random.Random], float]) -> None:
        def found(sizer: SizingPolicy) -> LoadResult:
            return closed_load(sizer, 32, TimedModel(0.0005, 0.001, stall=stall), 20.0, warm=4.0)

        fixed = [found(FixedSizer(size)) for size in (1, 8, 32)]
        adapted = found(BatchSizer(0.1, 1024))
        assert adapted.rate >= 0.9 * max(each.rate for each in fixed)
        assert adapted.rate >= 8 * fixed[0].rate  # where batches of one are all that is left of it
        assert adapted.quantile(0.99) <= 1.1 * min(each.quantile(0.99) for each in fixed)

    def test_the_goal_is_met_again_when_the_cores_are_quiet(self) -> None:
        model = TimedModel(fixed=0.04, each=0.004, jitter=0.05)
        model.stall = lambda chance: 0.3 if asyncio.get_running_loop().time() < 10.0 else 0.0
        assert closed_load(BatchSizer(0.5, 1024), 90, model, 40.0, warm=25.0).quantile(0.99) <= 0.5


class TestSlots:
    """Models of one process that take turns on its core."""

    @staticmethod
    def run(turns: bool, models: list[TimedModel], clients: int) -> list[LoadResult]:
        """So many clients for each model; two that compute at once take twice as long, as on one core."""

        async def main() -> list[LoadResult]:
            slots, results, active = ComputeSlots(1), [LoadResult() for _ in models], [0]
            clock = asyncio.get_running_loop().time

            def on_one_core(model: TimedModel) -> Callable[[Tensors], Awaitable[Tensors]]:
                async def compute(inputs: Tensors) -> Tensors:
                    active[0] += 1
                    for _ in range(active[0]):
                        found = await model(inputs)
                    active[0] -= 1
                    return found

                return compute

            async def client(batcher: RequestBatcher, result: LoadResult) -> None:
                while clock() < 4.0:
                    await one(batcher, result, 60.0)

            tasks = []
            for model, result in zip(models, results, strict=True):
                settings, execute = BatchSettings(), on_one_core(model)
                metrics, shared = VersionMetrics(), slots if turns else None
                batcher = RequestBatcher(execute, BatchSizer(4.0, 64), settings, metrics, slots=shared)
                tasks += [client(batcher, result) for _ in range(clients)]
            await asyncio.gather(*tasks)
            for result in results:
                result.seconds = clock()
            return results

        return run_virtual(main())

    def test_models_that_take_turns_compute_all_clients_at_once(self) -> None:
        models = [TimedModel(fixed=0.01), TimedModel(fixed=0.01)]
        turns = self.run(True, models, 8)
        assert [max(each.sizes[9:]) for each in models] == [8, 8]
        assert [sum(each.sizes[9:]) / len(each.sizes[9:]) for each in models] == pytest.approx([8, 8], rel=0.05)
        together = self.run(False, [TimedModel(fixed=0.01), TimedModel(fixed=0.01)], 8)
        assert sum(each.answered for each in turns) >= 1.5 * sum(each.answered for each in together)

    def test_a_slow_model_does_not_hold_up_a_quick_one(self) -> None:
        """It waits as long as its own batch takes on the shared core, and no longer."""
        quick, _ = self.run(True, [TimedModel(fixed=0.01), TimedModel(fixed=1.0)], 1)
        beside, _ = self.run(False, [TimedModel(fixed=0.01), TimedModel(fixed=1.0)], 1)
        assert quick.quantile(0.99) <= 2 * beside.quantile(0.99)


class TestPriority:
    @staticmethod
    def answered(levels: list[int], queue: int = 1024) -> tuple[list[int], list[int]]:
        """Requests that come at once while one is computed: their places in order of the answers, and the refused."""
        order, refused = [], []

        async def main() -> None:
            batcher = batcher_of(TimedModel(fixed=1.0), FixedSizer(1), queue=queue)

            async def ask(place: int, level: int) -> None:
                try:
                    await batcher.submit(ONE, 1, 99.0, level)
                    order.append(place)
                except ServerBusy:
                    refused.append(place)

            await asyncio.gather(*(ask(place, level) for place, level in enumerate([NORMAL, *levels])))

        run_virtual(main())
        return order, refused

    def test_urgent_requests_go_first_and_equal_ones_in_turn(self) -> None:
        assert self.answered([NORMAL, 9, 1, NORMAL, 1, 9]) == ([0, 3, 5, 1, 4, 2, 6], [])

    def test_a_full_queue_takes_an_urgent_request_in_place_of_the_least_urgent(self) -> None:
        assert self.answered([9, NORMAL, 1], queue=2) == ([0, 3, 2], [1])

    def test_nobody_makes_room_for_one_that_is_as_urgent(self) -> None:
        assert self.answered([1, 1, 1], queue=2) == ([0, 1, 2], [3])

    def test_an_urgent_request_waits_only_for_those_before_it(self) -> None:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            batcher = batcher_of(TimedModel(fixed=1.0, each=0.0), FixedSizer(1))
            await batcher.submit(ONE, 1, 99.0)  # so that it knows its pace
            rest = [asyncio.create_task(batcher.submit(ONE, 1, 99.0)) for _ in range(5)]
            await asyncio.sleep(0)
            began = loop.time()
            await batcher.submit(ONE, 1, began + 2.5, 1)  # the fifth of its kind would be refused
            seconds = loop.time() - began
            await asyncio.gather(*rest)
            return seconds

        assert run_virtual(main()) == pytest.approx(2.0)


class TestRefusals:
    def test_a_full_queue_refuses_and_says_when_to_come_again(self) -> None:
        async def main() -> ServerBusy:
            batcher = batcher_of(TimedModel(fixed=1.0), FixedSizer(1), queue=2)
            await batcher.submit(ONE, 1, 99.0)  # so that it knows its pace
            tasks = [asyncio.create_task(batcher.submit(ONE, 1, 99.0)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(ServerBusy, match="2 samples wait already, 2 may") as busy:
                await batcher.submit(ONE, 1, 99.0)
            await asyncio.gather(*tasks)
            return busy.value

        assert 2.0 < run_virtual(main()).retry_after < 5.0

    def test_a_request_that_could_not_be_answered_in_time_is_refused_at_once(self) -> None:
        async def main() -> float:
            loop, model = asyncio.get_running_loop(), TimedModel(fixed=1.0)
            batcher = batcher_of(model, FixedSizer(1))
            await batcher.submit(ONE, 1, 99.0)
            tasks = [asyncio.create_task(batcher.submit(ONE, 1, 99.0)) for _ in range(4)]
            await asyncio.sleep(0)
            began = loop.time()
            with pytest.raises(ServerBusy, match="the answer would take"):
                await batcher.submit(ONE, 1, loop.time() + 1.5)
            refused_after = loop.time() - began
            await asyncio.gather(*tasks)
            assert len(model.sizes) == 5
            return refused_after

        assert run_virtual(main()) == 0.0

    def test_what_waits_beyond_its_deadline_is_never_computed(self) -> None:
        async def main() -> list[int]:
            model = TimedModel(fixed=1.0)
            batcher = batcher_of(model, FixedSizer(1))
            first = asyncio.create_task(batcher.submit(ONE, 1, 99.0))
            await asyncio.sleep(0)
            with pytest.raises(DeadlinePassed, match="within the request's time"):
                await batcher.submit(ONE, 1, 0.5)
            await first
            await batcher.drain(9.0)
            return model.sizes

        assert run_virtual(main()) == [1]

    def test_a_client_that_is_gone_is_never_computed(self) -> None:
        async def main() -> tuple[list[int], int]:
            model = TimedModel(fixed=1.0)
            batcher = batcher_of(model, FixedSizer(1))
            tasks = [asyncio.create_task(batcher.submit(ONE, 1, 99.0)) for _ in range(3)]
            await asyncio.sleep(0.5)
            tasks[1].cancel()
            await asyncio.gather(tasks[0], tasks[2])
            return model.sizes, batcher.queued

        assert run_virtual(main()) == ([1, 1], 0)


class TestBatches:
    def test_each_request_gets_its_own_rows(self) -> None:
        async def main() -> list[list[list[float]]]:
            batcher = batcher_of(TimedModel(), FixedSizer(64))
            inputs = [{"x": np.full((rows, 1), rows, np.float32)} for rows in (1, 3, 2, 5)]
            found = await asyncio.gather(*(batcher.submit(each, len(each["x"]), 99.0) for each in inputs))
            return [each["y"].tolist() for each in found]

        assert run_virtual(main()) == [[[2.0 * rows]] * rows for rows in (1, 3, 2, 5)]

    def test_requests_of_different_shapes_are_not_stacked(self) -> None:
        async def main() -> list[int]:
            model = TimedModel()
            batcher = batcher_of(model, FixedSizer(64))
            shapes = [(1, 2), (1, 2), (1, 3), (1, 2)]
            await asyncio.gather(*(batcher.submit({"x": np.zeros(s, np.float32)}, 1, 99.0) for s in shapes))
            return model.sizes

        assert run_virtual(main()) == [1, 1, 1, 1]  # one began alone; then two, three and two wide

    def test_one_bad_request_does_not_fail_those_it_met(self) -> None:
        async def model(inputs: Tensors) -> Tensors:
            await asyncio.sleep(1.0)
            if (inputs["x"] < 0).any():
                raise ValueError("negative")
            return {"y": inputs["x"]}

        async def main() -> list[object]:
            batcher = batcher_of(model, FixedSizer(64))
            values = [0.0, 1.0, -1.0, 2.0]
            asks = (batcher.submit({"x": np.array([[v]], np.float32)}, 1, 99.0) for v in values)
            return await asyncio.gather(*asks, return_exceptions=True)

        found = run_virtual(main())
        assert [type(each) for each in found] == [dict, dict, PredictFailed, dict]
        assert str(found[2]) == "the model raised ValueError: negative"

    def test_a_model_that_returns_another_number_of_rows_is_found_out(self) -> None:
        async def model(inputs: Tensors) -> Tensors:
            await asyncio.sleep(1.0)
            return {"y": np.zeros((1, 1), np.float32)}

        async def main() -> list[object]:
            batcher = batcher_of(model, FixedSizer(64))
            asks = [batcher.submit(ONE, 1, 99.0) for _ in range(3)]
            return await asyncio.gather(*asks, return_exceptions=True)

        found = run_virtual(main())
        assert all(not isinstance(each, RequestError) for each in found)  # computed one by one, each is right

    def test_several_batches_at_once_where_the_model_allows_it(self) -> None:
        async def main() -> float:
            batcher = batcher_of(TimedModel(fixed=1.0, each=0.0), FixedSizer(1), concurrency=4)
            await asyncio.gather(*(batcher.submit(ONE, 1, 99.0) for _ in range(8)))
            return asyncio.get_running_loop().time()

        assert run_virtual(main()) == pytest.approx(2.0)
