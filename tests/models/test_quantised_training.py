"""What all-reduce trained on two workers is quantised afterwards: smaller, and it decides as before (Caffe2's way)."""

from pathlib import Path

import forked

from shoal.models import Registry
from shoal.models.exporting import export_version
from shoal.models.program import run_onnx, unpack_samples

SCRIPT = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
patterns = torch.randn(4, 256)
labels = torch.arange(256) % 4
images = patterns[labels] + 0.3 * torch.randn(256, 256)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
run.register("net", example=images[:64])
for epoch in run.epochs(2):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
with torch.no_grad():
    run.report(accuracy=float((model(images[:64]).argmax(-1) == labels[:64]).float().mean()))
"""


def test_a_model_trained_by_all_reduce_is_quantised_with_its_accuracy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {"SHOAL_REGISTER": "1", "OMP_NUM_THREADS": "1", "SHOAL_RUNS": str(tmp_path / "runs")}
    done = forked.command(tmp_path, "run", "--workers", "2", "--plan", "allreduce", "train.py", **env).wait(110)
    assert done.code == 0, done.err
    registry = Registry(tmp_path / "models")
    version = registry.get("net")
    assert (version.workers, version.plan.split(",")[0].split("(")[0]) == (2, "allreduce")
    assert version.metrics["accuracy"] is not None
    assert version.metrics["accuracy"] >= 0.95
    whole = export_version(registry, version, tmp_path / "net.onnx", "onnx")
    small = export_version(registry, version, tmp_path / "int8.onnx", "onnx-int8", tolerance=0.1)
    assert small.bytes <= 0.3 * whole.bytes
    assert small.agreement >= 0.98
    inputs, _ = unpack_samples(registry.file(version, "samples.safetensors"))
    (outputs,) = run_onnx((tmp_path / "int8.onnx").read_bytes(), inputs)
    right = [int(place) == number % 4 for number, place in enumerate(outputs.argmax(-1))]
    assert sum(right) / len(right) >= version.metrics["accuracy"] - 0.01
