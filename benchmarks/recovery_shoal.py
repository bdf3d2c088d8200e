"""The training of recovery.py under Shoal: nothing in it knows of losses."""

import sys

import torch
from recovery_model import BATCH, Log, data, model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import shoal

run = shoal.start()
torch.set_num_threads(1)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
net, optimizer, loader = run.join(net, optimizer, DataLoader(data(), BATCH, shuffle=True))
log = Log(sys.argv[1], run.rank)
for _ in run.epochs(10**6):
    for x, y in loader:
        cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(run.step, run.size)
