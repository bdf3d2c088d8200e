"""A small transformer of examples/shakespeare.py that writes character by character, with SGD.

    shakespeare_sgd.py FILE STEPS

Samples a step are the same for any number of workers.
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import shoal

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from shakespeare import Windows, Writer, cross_entropy, evaluate, read

path, steps = Path(sys.argv[1]), int(sys.argv[2])
CONTEXT, BATCH = 32, 16
run = shoal.start()
train, tail, letters = read(path)
torch.manual_seed(5)
model = Writer(letters, width=64, depth=2, context=CONTEXT)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loader = DataLoader(Windows(train, CONTEXT, steps * BATCH), batch_size=BATCH // run.size, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
device = torch.device("cpu")
for _ in run.epochs(1):
    for x, y in loader:
        cross_entropy(model, x, y, device).backward()
        optimizer.step()
        optimizer.zero_grad()
    run.report(loss=evaluate(model, Windows(tail, CONTEXT, 400), device))
