"""The conformance case of exchanges that make all replicas agree."""

import os
import signal
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import Tensor

from shoal.groups.base import WorkerGroup
from shoal.sync.exchange.base import GradientExchange
from shoal.testing.world import Result, WorkerWorld, error_of, launch_world, run_world
from shoal.wire.bucket import GradientBucket, lay_out

# Scalars, empty tensors, and one larger than the buckets of `open`.
SHAPES = [(3, 5), (), (0,), (1,), (70_001,), (2, 3, 4), (257,)]
ROUNDS = 10


def tensors(rank: int, number: int, dtype: torch.dtype) -> list[Tensor]:
    """A worker's gradients in one round: any other worker can compute them too."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def fill(buckets: list[GradientBucket], gradients: list[Tensor], weight: float, absent: set[int] | None = None) -> None:
    for bucket in buckets:
        for slot, place in enumerate(bucket.plan.slots):
            if place.index not in (absent or set()):
                bucket.put(slot, gradients[place.index], weight)


def taken(buckets: list[GradientBucket]) -> Result:
    return {str(p.index): bucket.views[s].clone() for bucket in buckets for s, p in enumerate(bucket.plan.slots)}


class ExchangeCase(ABC):
    """Subclass, implement `make`; pytest runs the rest, on real processes."""

    sizes = (2, 3, 4)

    @abstractmethod
    def make(self, group: WorkerGroup, directory: Path) -> GradientExchange:
        """The exchange under test, in one worker."""

    # Small buckets, so that there are several of them.
    def open(
        self, world: WorkerWorld, dtype: torch.dtype = torch.float32, capacity: int = 1 << 12
    ) -> tuple[GradientExchange, list[GradientBucket]]:
        exchange = self.make(world.group, world.dir)
        return exchange, exchange.open(lay_out(tensors(0, 0, dtype), capacity))

    def check_mean(self, size: int, dtype: torch.dtype, tolerance: float) -> None:
        def body(world: WorkerWorld) -> Result:
            exchange, buckets = self.open(world, dtype)
            exchange.prepare()
            fill(buckets, tensors(world.group.rank, 7, dtype), exchange.weight)
            for number in range(len(buckets)):
                exchange.start(number)
                exchange.progress()
            for number in range(len(buckets)):
                exchange.finish(number)
            return {name: tensor.double() for name, tensor in taken(buckets).items()}

        results = run_world(size, body)
        for index in range(len(SHAPES)):
            mean = sum(tensors(rank, 7, dtype)[index].double() for rank in range(size)) / size
            for result in results:
                assert torch.equal(result[str(index)], results[0][str(index)]), "workers hold different bits"
                torch.testing.assert_close(result[str(index)], mean, atol=tolerance, rtol=tolerance)

    def test_mean_float32(self) -> None:
        for size in self.sizes:
            self.check_mean(size, torch.float32, 1e-6)

    def test_mean_float64(self) -> None:
        self.check_mean(self.sizes[0], torch.float64, 1e-14)

    def test_mean_bfloat16(self) -> None:
        self.check_mean(self.sizes[0], torch.bfloat16, 2e-2)

    def test_many_rounds_never_mix(self) -> None:
        """Workers race ahead of each other; no round may see another round's numbers."""

        def body(world: WorkerWorld) -> Result:
            exchange, buckets = self.open(world)
            size, rank = world.group.size, world.group.rank
            worst = torch.zeros(())
            for number in range(ROUNDS):
                exchange.prepare()
                fill(buckets, tensors(rank, number, torch.float32), exchange.weight)
                for index in range(len(buckets)):
                    exchange.start(index)
                for index in range(len(buckets)):
                    exchange.finish(index)
                everyones = zip(*(tensors(r, number, torch.float32) for r in range(size)), strict=True)
                means = [torch.stack(same).mean(0) for same in everyones]
                for name, tensor in taken(buckets).items():
                    apart = (tensor - means[int(name)]).abs()
                    worst = torch.maximum(worst, apart.max() if tensor.numel() else worst)
                for bucket in buckets:
                    bucket.reset()
            return {"worst": worst}

        assert all(float(result["worst"]) < 1e-5 for result in run_world(self.sizes[-1], body))

    def test_what_nobody_had_is_known_to_all(self) -> None:
        """Worker 0 has no gradient 0, and no worker has gradient 4."""

        def body(world: WorkerWorld) -> Result:
            exchange, buckets = self.open(world)
            absent = {4, 0} if world.group.rank == 0 else {4}
            exchange.prepare()
            fill(buckets, tensors(world.group.rank, 3, torch.float32), exchange.weight, absent)
            for index in range(len(buckets)):
                exchange.start(index)
            for index in range(len(buckets)):
                exchange.finish(index)
            had = {p.index: b.had(s) for b in buckets for s, p in enumerate(b.plan.slots)}
            return {"had": torch.tensor([had[i] for i in range(len(SHAPES))]), **taken(buckets)}

        size = self.sizes[0]
        for result in run_world(size, body):
            assert (result["had"] > 0).tolist() == [i != 4 for i in range(len(SHAPES))]
            assert not result["4"].any()
            torch.testing.assert_close(result["0"] * size, sum(tensors(r, 3, torch.float32)[0] for r in range(1, size)))

    def test_gather_takes_any_size(self) -> None:
        def body(world: WorkerWorld) -> Result:
            exchange, _ = self.open(world)
            rank = world.group.rank
            mine = bytes([rank]) * (0 if rank == 0 else 3_000_000 // rank)
            return {str(r): torch.tensor([len(d), sum(d[:9])]) for r, d in enumerate(exchange.gather(mine))}

        for result in run_world(3, body):
            assert [result[str(r)].tolist() for r in range(3)] == [[0, 0], [3_000_000, 9], [1_500_000, 18]]

    def test_counts_what_it_offers(self) -> None:
        def body(world: WorkerWorld) -> Result:
            exchange, buckets = self.open(world, torch.float64)
            exchange.prepare()
            fill(buckets, tensors(world.group.rank, 0, torch.float64), exchange.weight)
            for index in range(len(buckets)):
                exchange.start(index)
            for index in range(len(buckets)):
                exchange.finish(index)
            return {
                "raw": torch.tensor(exchange.observer.raw_bytes),
                "sent": torch.tensor(exchange.observer.sent_bytes),
            }

        elements = sum(torch.Size(shape).numel() for shape in SHAPES)
        for result in run_world(self.sizes[0], body):
            assert int(result["raw"]) == 4 * elements
            assert 0 < int(result["sent"]) <= 8 * elements

    def test_a_lost_worker_ends_the_wait(self) -> None:
        """One is killed before it fills its buckets; the others must say so instead of waiting."""

        def body(world: WorkerWorld) -> None:
            exchange, buckets = self.open(world)
            world.group.gather(b"")  # all are connected
            if world.group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            exchange.prepare()
            fill(buckets, tensors(0, 0, torch.float32), exchange.weight)
            for index in range(len(buckets)):
                exchange.start(index)
            for index in range(len(buckets)):
                exchange.finish(index)

        results, codes = launch_world(3, body, seconds=30)
        # The others fail with an error of their own; they are not killed, and do not hang.
        assert codes == [1, -signal.SIGKILL, 1]
        assert all("PeerLost" in error_of(results[rank]) for rank in (0, 2))
