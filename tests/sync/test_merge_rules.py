"""State merges by its rule: equal, sum or mean."""

import pytest
import torch

from shoal.core.errors import UsageError
from shoal.sync.state import StateTensor, redistribute


def worker(number: float) -> dict[str, StateTensor]:
    return {
        "momentum": StateTensor(torch.tensor([7.0]), "equal"),
        "residual": StateTensor(torch.tensor([number, 1.0]), "sum"),
        "average": StateTensor(torch.tensor([number]), "mean"),
    }


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_tensor_by_its_rule(workers: int) -> None:
    found = redistribute([worker(2.0), worker(4.0)], workers)
    assert found["momentum"].values.tolist() == [7.0]
    torch.testing.assert_close(workers * found["residual"].values, torch.tensor([6.0, 2.0]))
    assert found["average"].values.tolist() == [3.0]
    assert {one.merge for one in found.values()} == {"equal", "sum", "mean"}


def test_what_is_dealt_again_is_nobodys_memory() -> None:
    first = worker(1.0)
    redistribute([first], 1)["momentum"].values.zero_()
    assert first["momentum"].values.tolist() == [7.0]


def test_states_of_different_runs_are_refused() -> None:
    other = {"momentum": StateTensor(torch.zeros(2), "equal")}
    with pytest.raises(UsageError, match="different models or plans"):
        redistribute([worker(1.0), other], 2)
    with pytest.raises(UsageError, match="0 states cannot be dealt to 2 workers"):
        redistribute([], 2)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="merge='max' is no rule; use one of equal, sum, mean"):
        StateTensor(torch.zeros(1), "max")  # type: ignore[arg-type]
