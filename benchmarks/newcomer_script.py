"""What newcomer.py trains: a million parameters, until the file it was given is there."""

import os
import sys

from recovery_model import BATCH, data, model
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import shoal

run = shoal.start()
net = model()
optimizer = SGD(net.parameters(), lr=0.001, momentum=0.9)
net, optimizer, loader = run.join(net, optimizer, DataLoader(data(), batch_size=BATCH, shuffle=True))
for _ in run.epochs(10_000):
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if os.path.exists(sys.argv[1]):
            os._exit(0)
