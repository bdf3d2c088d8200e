"""`state=average`: what the workers' optimizers remember becomes the mean of all, at every round."""

import pytest
import torch
from test_local_rounds import exchange
from torch.optim import SGD, Adagrad, Adam, AdamW

from shoal.core.errors import UsageError
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.optimizer_states import find_state_names
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.synchronizer import EqualWeights, Part
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction


def test_what_an_optimizer_remembers_of_every_element() -> None:
    parameter = torch.zeros(3, requires_grad=True)
    assert find_state_names(SGD([parameter], lr=0.1)) == []
    assert find_state_names(SGD([parameter], lr=0.1, momentum=0.9)) == ["momentum_buffer"]
    assert find_state_names(Adam([parameter])) == find_state_names(AdamW([parameter])) == ["exp_avg", "exp_avg_sq"]
    assert find_state_names(Adagrad([parameter])) == ["sum"]


def test_an_optimizer_that_cannot_be_made_again_is_refused() -> None:
    class TwoLists(SGD):
        def __init__(self, params, others) -> None:
            super().__init__(params, lr=0.1)

    with pytest.raises(UsageError, match=r"what TwoLists remembers cannot be found out.*or write state=keep"):
        find_state_names(TwoLists([torch.zeros(1, requires_grad=True)], []))


@pytest.mark.parametrize("plan", ["", "int8"])
def test_momentum_of_all_is_averaged_exactly_at_a_round(plan: str) -> None:
    """Gradients are the worker's rank plus 1; after two steps momentum is 1.5 of that."""

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(64, requires_grad=True)
        optimizer = SGD([parameter], lr=0.5, momentum=0.5)
        made = LocalStepsSynchronizer(exchange(world.group, world.dir, plan), AverageOuter(), 2, average_state=True)
        session = world.group.session
        made.open(
            Part(["p"], [parameter], session, StepTransaction(session), EqualWeights(session), optimizers=[optimizer])
        )
        for _ in range(2):
            parameter.grad = torch.full((64,), float(world.group.rank + 1))
            made.before_step(optimizer)
            optimizer.step()
            made.after_step(optimizer)
        return {"momentum": optimizer.state[parameter]["momentum_buffer"].clone()}

    for result in run_world(2, body):
        assert torch.equal(result["momentum"], torch.full((64,), 1.5 * 1.5))
