"""Scripts that change their weights by hand, without an optimizer: replicas stay equal, and what is missing is said."""

from pathlib import Path

from forked import train

SCRIPT = """
import torch, shoal
from torch import nn

run = shoal.start()
torch.manual_seed(0)
model = run.join(nn.Linear(3, 2))
for step in range(6):
    model.zero_grad()
    model(torch.full((4, 3), 1.0 + run.rank)).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


def test_weights_changed_by_hand_stay_equal_and_the_script_is_told_what_it_does_without(tmp_path: Path) -> None:
    done = train(tmp_path, SCRIPT, "--workers", "2")
    assert done.code == 0, done.err
    sums = {line[line.index("checksum") :] for line in done.out.splitlines() if "checksum" in line}
    assert len(sums) == 1, done.out
    assert done.err.count("joins no optimizer") == 1, done.err
