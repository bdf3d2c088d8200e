"""The training of `benchmarks/balance.py`: a step sleeps as long as its samples take on a machine of some speed.

Workers of the benchmark share this machine's cores, so computing in earnest would not show four machines.

    shoal run -w 4 benchmarks/balance_script.py 1,1,1,0.25     or, as DDP:  torchrun … benchmarks/balance_script.py …
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, SAMPLE_SECONDS, STEPS, WARM_UP = 32, 1e-3, 120, 60
WORKERS = 4


def epoch(loader: DataLoader[list[Tensor]], model: nn.Module, optimizer: torch.optim.Optimizer, speed: float) -> float:
    """One pass; returns the seconds of its steps after those in which plans may still find their way."""
    began = 0.0
    for number, (x, y) in enumerate(loader):
        if number == WARM_UP:
            began = time.perf_counter()
        time.sleep(len(x) * SAMPLE_SECONDS / speed)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def main() -> None:
    speeds = [float(speed) for speed in sys.argv[1].split(",")]
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * BATCH * WORKERS, 64), torch.randn(STEPS * BATCH * WORKERS, 8))
    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    if os.environ.get("CONTESTANT") == "ddp":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = nn.parallel.DistributedDataParallel(model)
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        import shoal

        run = shoal.start()
        rank = run.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, loader = run.join(model, optimizer, DataLoader(data, BATCH))
    seconds = epoch(loader, model, optimizer, speeds[rank])
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps((STEPS - WARM_UP) * BATCH * WORKERS / seconds))


if __name__ == "__main__":
    main()
