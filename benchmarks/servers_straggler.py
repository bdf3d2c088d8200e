"""A script whose last worker is four times as slow as the others: what `benchmarks/servers.py` measures paces on.

Steps sleep, so a busy machine is as fast as a quiet one, and what is compared is waiting.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal

SECONDS, SLOWER, BATCH, STEPS = 0.02, 4, 8, 100
"""Of a step; of the slow worker; samples of a worker; steps of each where all make the same number."""


class SleepingModel(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * len(x) / BATCH)
        return super().forward(x)


def main() -> None:
    run = shoal.start()
    model = SleepingModel(64, 8)
    model.seconds = SECONDS * (SLOWER if run.rank == run.size - 1 else 1)
    rows = STEPS * BATCH * run.size
    loader = DataLoader(TensorDataset(torch.randn(rows, 64), torch.randn(rows, 8)), batch_size=BATCH)
    model, optimizer, loader = run.join(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for _ in run.epochs(1):
        began = time.perf_counter()
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - began
    capacity = BATCH / SECONDS * (run.size - 1 + 1 / SLOWER)
    run.report(share=rows / seconds / capacity)


if __name__ == "__main__":
    main()
