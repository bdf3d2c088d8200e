"""`run.save`: plain safetensors for others."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shoal.core.errors import UsageError
from shoal.testing.world import WorkerWorld, run_world


def test_others_can_read_what_was_saved(tmp_path: Path) -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        model[2].weight = model[0].weight  # tied
        with pytest.raises(UsageError, match="has no model"):
            run.save(tmp_path / "early.safetensors")
        run.join(model)
        run.save(tmp_path / "model.safetensors")
        world.group.gather(b"")
        fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert fresh.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(fresh.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
        if run.is_main:
            with pytest.raises(UsageError, match="cannot save to"):
                run.save(tmp_path / "nowhere" / "model.safetensors")

    run_world(2, body)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]
