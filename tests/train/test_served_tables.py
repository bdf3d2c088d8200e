"""Tables larger than a worker: memory follows the rows of a batch, and checkpoints are written part by part."""

import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from by_servers import run_served
from forked import soon
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import LayoutError
from shoal.launch.services import ServiceProcesses
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.checkpoint.manifest import CheckpointDamaged, listed, newest, verify
from shoal.train.checkpoint.tables import RowBlock, load_blocks
from shoal.train.run import Run
from shoal.train.served_embedding import ServedEmbedding
from shoal.train.servers import plan_services

PLAN = "words.*: server(shards=SHARDS), stale(0); *: allreduce"
WORDS = 40


def block(table: str, rows: list[int], width: int) -> bytes:
    arrays = [np.array(rows, np.int64).tobytes(), np.zeros((len(rows), width), np.float32).tobytes()]
    head = msgspec.json.encode(RowBlock(table, [len(each) for each in arrays]))
    return len(head).to_bytes(4, "little") + head + b"".join(arrays)


class Keyed(nn.Module):
    """A table, and a head that all workers sum."""

    def __init__(self, rows: int, width: int, rule: str = "adagrad") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = ServedEmbedding(rows, width, rule=rule, rate=0.1, seed=1)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x).mean(1))


def private_memory(process: str | int = "self") -> int:
    """Bytes that a process has written to, without what it shares."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def train_with_table(megabytes: int, size: int, steps: int = 20) -> list[int]:
    """Bytes by which each worker has grown, training a table of so many megabytes."""
    width = 64
    rows = megabytes * (1 << 20) // (4 * width)

    def body(world: WorkerWorld, start: object) -> Result:
        run: Run = start()  # type: ignore[operator]
        before = private_memory()
        model = Keyed(rows, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.join(model, optimizer)
        generator = torch.Generator().manual_seed(run.rank)
        for _ in range(steps):
            loss = model(torch.randint(0, rows, (16, 8), generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"grown": torch.tensor(private_memory() - before), "loss": loss.detach()}

    results = run_served(size, PLAN.replace("SHARDS", "2"), body)
    assert all(bool(result["loss"].isfinite()) for result in results)
    return [int(result["grown"]) for result in results]


def test_workers_grow_by_less_than_a_quarter_of_the_table() -> None:
    assert all(grown < 64 / 4 * (1 << 20) for grown in train_with_table(64, 2))


def test_every_server_holds_its_part_of_the_table() -> None:
    """Of 64 MB whose rows are all used, two servers hold 32 each, and the worker that used them nearly nothing."""
    plan, rows, width, at_once = PLAN.replace("SHARDS", "2"), 1 << 18, 64, 1 << 12
    services = ServiceProcesses(plan_services(Plan.parse(plan), 2))
    services.open()

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan, servers=str(services.folder.path))
        model = Keyed(rows, width, rule="sgd")
        run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before, empty = private_memory(), [private_memory(pid) for pid in services._pids]
        run.barrier()
        with torch.no_grad():
            for at in range(run.rank * at_once, rows, 2 * at_once):
                model.words(torch.arange(at, at + at_once))
        run.barrier()
        held = [private_memory(pid) - least for pid, least in zip(services._pids, empty, strict=True)]
        run.barrier()
        return {"held": torch.tensor(held), "grown": torch.tensor(private_memory() - before)}

    part = rows * width * 4 // 2
    try:
        for result in run_world(2, body):
            assert bool((result["held"] > 0.9 * part).all()), result["held"]
            assert bool((result["held"] < 1.5 * part).all()), result["held"]
            assert int(result["grown"]) < part
    finally:
        services.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_table_of_two_gigabytes_trains_with_workers_that_stay_small() -> None:
    assert all(grown < 300 * (1 << 20) for grown in train_with_table(2048, 2, steps=200))


class Stop(Exception):  # noqa: N818 (ends a script, and is no error)
    """Of a script that is to go on later."""


def train(run: Run, stop: int | None) -> Keyed:
    model = Keyed(WORDS, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randint(0, WORDS // 2, (48, 3), generator=generator))
    _, _, loader = run.join(model, optimizer, DataLoader(data, batch_size=12 // run.size, shuffle=True))
    for _ in run.epochs(2):
        for (x,) in loader:
            if run.step == stop:
                raise Stop
            optimizer.zero_grad()
            (model(x) - 1.0).square().mean().backward()
            optimizer.step()
    return model


def part_run(size: int, shards: int, kept: Path, stop: int | None = None) -> Result:
    """A run to its end, or to a step; it goes on from what is kept, and keeps what it has saved."""

    def body(world: WorkerWorld, start: object) -> Result:
        resume, _ = newest(kept, "run")
        run: Run = start(checkpoint="off" if stop is None else "4steps", resume=resume)  # type: ignore[operator]
        try:
            model = train(run, stop)
        except Stop:
            world.group.gather(b"")
            if run.is_main:
                assert soon(30.0, lambda: listed(run.dir))
                shutil.copytree(run.dir / "checkpoints", kept / "checkpoints")
            world.group.gather(b"")
            return {}
        run.barrier()
        with torch.no_grad():
            return {"rows": model.words(torch.arange(WORDS)).clone(), "head": model.head.weight.detach().clone()}

    return run_served(size, PLAN.replace("SHARDS", str(shards)), body)[0]


@pytest.mark.parametrize(("workers", "shards"), [(2, 2), (3, 3), (1, 1)])
def test_a_table_goes_on_with_other_numbers_of_workers_and_servers(tmp_path: Path, workers: int, shards: int) -> None:
    whole = part_run(2, 2, tmp_path / "none")
    assert part_run(2, 2, tmp_path, stop=5) == {}
    (folder, *_) = listed(tmp_path)
    assert len([shard.rows for shard in verify(folder).shards if shard.rows is not None]) == 2
    again = part_run(workers, shards, tmp_path)
    for name in whole:
        assert torch.allclose(again[name], whole[name], atol=1e-6, rtol=0), name


def test_a_damaged_part_of_a_table_is_passed_over(tmp_path: Path) -> None:
    assert part_run(2, 1, tmp_path, stop=5) == {}
    (folder, *_) = listed(tmp_path)
    place = folder / "worker-0.rows"
    data = bytearray(place.read_bytes())
    data[-3] ^= 1
    place.write_bytes(data)
    found, reasons = newest(tmp_path, "run")
    assert found != folder
    assert "worker-0.rows is damaged or of another step" in reasons[0]


@pytest.mark.parametrize(
    ("table", "data", "said"),
    [
        (True, b"\x02\0\0\0{]", "holds what is no block of rows"),
        (True, block("0.words.weight", [0], 4)[:-1], "ends in the middle of a block"),
        (True, block("0.words.weight", [WORDS], 4), f"are not those of {WORDS} x 4"),
        (True, block("0.words.weight", [0], 3), f"are not those of {WORDS} x 4"),
        (False, block("0.words.weight", [0], 4), "rows of a table 'words.weight', and the model has none"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, table: bool, data: bytes, said: str) -> None:
    place = tmp_path / "worker-0.rows"
    place.write_bytes(data)

    def body(world: WorkerWorld) -> None:
        run, model = world.start(), Keyed(WORDS, 4) if table else nn.Linear(2, 1)
        run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises((CheckpointDamaged, LayoutError), match=re.escape(said)):
            load_blocks(place, run._together.joined[0], 0)

    run_world(1, body)
