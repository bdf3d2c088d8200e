"""The training of recovery.py under torchrun with DDP and gloo, as PyTorch's own tutorial on elastic training has it.

When a worker dies, torchrun ends the others and starts all of them again; they go on from the last checkpoint.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from recovery_model import BATCH, Log, data, model
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

folder, interval = sys.argv[1], float(sys.argv[2])
kept = os.path.join(folder, "checkpoint.pt")
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
net = DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
epoch, done, step = 0, 0, 0
if os.path.exists(kept):
    state = torch.load(kept, weights_only=True)
    net.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    epoch, done, step = state["epoch"], state["done"], state["step"]
sampler = DistributedSampler(data(), size, rank)
loader = DataLoader(sampler.dataset, BATCH, sampler=sampler)
log = Log(folder, rank)
saved = time.monotonic()
while True:
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        if number < done:
            continue
        cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        log.step(step, size)
        if rank == 0 and time.monotonic() - saved >= interval:
            saved = time.monotonic()
            state = {"model": net.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"epoch": epoch, "done": number + 1, "step": step}, f"{kept}.part")
            os.replace(f"{kept}.part", kept)
    epoch, done = epoch + 1, 0
