"""The network of examples/mnist.py on a part of MNIST, with SGD: error feedback is a method for SGD.

    mnist_sgd.py FOLDER SAMPLES [LR MOMENTUM [PAUSE]]

Samples a step are the same for any number of workers. PAUSE: seconds that each step takes more; the last worker's four
times as many.
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import shoal

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from mnist import evaluate, mnist, network

folder, samples = Path(sys.argv[1]), int(sys.argv[2])
lr, momentum = map(float, sys.argv[3:5] or (0.1, 0.0))
run = shoal.start()
pause = float(sys.argv[5]) * (4 if run.rank == run.size - 1 else 1) if len(sys.argv) > 5 else 0.0
torch.manual_seed(5)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
loader = DataLoader(mnist(folder, "train", samples), batch_size=32 // run.size, shuffle=True)
test = mnist(folder, "test", 5000)
model, optimizer, loader = run.join(model, optimizer, loader)
for _ in run.epochs(2):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
    run.report(accuracy=evaluate(model, test, torch.device("cpu")))
