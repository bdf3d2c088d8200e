"""DoReFa: what layers compute with, that the script's model stays its own, and that it learns."""

import copy

import pytest
import torch
from classes import learn, network
from torch import nn

from shoal.core.errors import UsageError
from shoal.plan.precision import DorefaTerm
from shoal.testing import WorkerWorld, run_world
from shoal.train.precision.dorefa import LowBits, coarse, levels, weights
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_weights_take_few_values_and_let_gradients_through(bits: int) -> None:
    weight = torch.randn(40, 30).requires_grad_()
    low = weights(weight, bits)
    assert len(low.unique()) <= 2**bits
    assert torch.equal(low.sign()[weight.abs() > 1], weight.sign()[weight.abs() > 1])
    low.sum().backward()
    assert weight.grad is not None
    assert (weight.grad > 0).all(), "straight through, or through tanh"


def test_one_bit_is_the_sign_times_the_mean_magnitude() -> None:
    weight = torch.tensor([[1.0, -2.0], [0.0, 5.0]])
    assert weights(weight, 1).tolist() == [[2.0, -2.0], [2.0, 2.0]]


@pytest.mark.parametrize("bits", [1, 2, 6])
def test_gradients_have_few_levels_per_sample_and_the_right_mean(bits: int) -> None:
    gradient = torch.randn(3, 4, 5) * torch.tensor([1.0, 100.0, 0.0])[:, None, None]
    generator = torch.Generator().manual_seed(1)
    draws = torch.stack([coarse(gradient, bits, torch.rand(3, 4, 5, generator=generator)) for _ in range(1000)])
    for sample in range(3):
        top = gradient[sample].abs().max()
        steps = (draws[:, sample] / top + 1) / 2 * (2**bits - 1) if top else torch.zeros(1)
        torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
    error = draws.std(0) / 1000**0.5
    z = ((draws.mean(0) - gradient) / error)[error > 1e-6]
    assert float(z.abs().max()) < 4.5
    assert draws[:, 2].eq(0).all()


def test_layers_in_the_middle_see_few_levels_and_the_others_all() -> None:
    model = network()
    LowBits(DorefaTerm(1, 2, 6), [model], seed=0, rank=0)
    seen: dict[int, torch.Tensor] = {}
    for number in (0, 3, 8, 11):
        model[number].register_forward_pre_hook(lambda _, inputs, n=number: seen.update({n: inputs[0].detach()}))
    model(torch.rand(5, 1, 8, 8))
    assert set((seen[3] * 3).unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    assert torch.equal(seen[3], levels(seen[3], 2))
    assert len(seen[0].unique()) > 4
    assert len(seen[11].unique()) > 4


def test_the_models_own_weights_and_names_stay(tmp_path) -> None:
    def body(world: WorkerWorld):
        run = world.start("dorefa")
        names = list(network().state_dict())
        model, _ = learn(run, epochs=1)
        assert list(model.state_dict()) == names
        assert isinstance(model[3].weight, nn.Parameter)
        run.save(tmp_path / "model.safetensors")
        other = copy.deepcopy(model)
        x = torch.rand(4, 1, 8, 8)
        assert torch.equal(other(x), model(x)), "a copy computes as the model does"
        plain = network()
        plain.load_state_dict(model.state_dict())
        assert not torch.equal(plain(x), model(x))
        with pytest.raises(RuntimeError):
            model(torch.rand(4, 3, 8, 8))
        assert isinstance(model[3].weight, nn.Parameter), "also after a pass that failed"

    run_world(1, body)


@pytest.mark.soak("convergence")
def test_zhou_one_two_six_bits_learn_almost_as_well_and_travel_so() -> None:
    def body(world: WorkerWorld):
        found = {}
        for name, text in {"full": "", "low": "dorefa(1, 2, 6)"}.items():
            run = world.start(text, name=name)
            model, reached = learn(run, epochs=3)
            found |= {name: torch.tensor(reached), f"{name}.w": torch.cat([p.flatten() for p in model.parameters()])}
            exchange = run._together.joined[0].exchange
            found[f"{name}.bytes"] = torch.tensor(exchange.observer.sent_bytes / exchange.observer.raw_bytes)
        return found

    one, two = run_world(2, body, seconds=110)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one["full"] > 0.9
    assert one["low"] > one["full"] - 0.03
    assert one["low.bytes"] < 6 / 32 + 0.04
    assert one["full.bytes"] > 0.99


def test_a_model_without_a_middle_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Sequential has 2 convolutions and linear layers.*it needs 3 or more$"):
        LowBits(DorefaTerm(), [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))], seed=0, rank=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what torch.compile imports
def test_a_compiled_model_is_refused() -> None:
    def body(world: WorkerWorld):
        run, model = world.start("alone, dorefa"), network()
        with pytest.raises(UsageError, match=r"join the model without torch\.compile$"):
            run.join(torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1))

    run_world(1, body)


def test_a_weight_that_is_made_of_others_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    with pytest.raises(UsageError, match="is made of other parameters") as refused:
        LowBits(DorefaTerm(), [model], seed=0, rank=0)
    assert "\n" not in str(refused.value)
