"""`load` fills the user's module, or names what does not fit and changes nothing."""

from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.core.errors import LayoutError, UsageError
from shoal.models import Registry, load


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    registry.add("digits", nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).state_dict())
    registry.tag("digits", "prod")
    return registry


def test_weights_and_buffers_go_into_the_module(registry: Registry) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert load("digits@prod", model, registry.root) is model
    stored = registry.tensors(registry.get("digits"))
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    registry.untag("digits@prod")
    with pytest.raises(UsageError, match="in use by a run or server"):
        registry.remove("digits:1")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), r"'0.weight' is \[3, 4\] in digits:1 and \[3, 5\]"),
        (nn.Sequential(nn.Linear(4, 3)), "the module has no '1.weight', which digits:1 holds"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "digits:1 has no '2.weight'"),
    ],
)
def test_another_architecture_is_named_and_left_alone(registry: Registry, model: nn.Module, message: str) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(LayoutError, match=message):
        load("digits@prod", model, registry)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
