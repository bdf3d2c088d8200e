"""A joined module, copied, pickled or saved, and its optimizer, carry nothing of the run."""

import copy
import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import adamw, data, loss_of, sgd
from models import MLP, make
from torch import Tensor, nn

from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.forward import StayingHook, add_hook, add_pre_hook, listen

HOOKS = [name for name in vars(nn.Linear(1, 1)) if "hooks" in name]


def seen(_module: nn.Module, _inputs: Any) -> None:
    """A hook of the script's own."""


def joined(model: nn.Module, told: list[object]) -> nn.Module:
    listen(model, told.append, told.append)
    return model


def pickled(model: nn.Module) -> nn.Module:
    data = pickle.dumps(model)
    names = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    assert not [name for name in names if "shoal" in name]
    return pickle.loads(data)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_has_the_hooks_of_the_script_and_no_other(copied: Callable[[nn.Module], nn.Module]) -> None:
    told: list[object] = []
    model = make()
    model.register_forward_pre_hook(seen, with_kwargs=False)
    add_pre_hook(joined(model, told), StayingHook(lambda *_: None), with_kwargs=True)
    add_hook(model, StayingHook(lambda *_: None), with_kwargs=True, always_call=True)
    inside = copied(nn.Sequential(model))[0]
    for again in [copied(model), *([inside] if inside is not model else [])]:
        assert vars(again).keys() == vars(make()).keys()
        assert list(again._forward_pre_hooks.values()) == [seen]
        assert not any(len(getattr(again, name)) for name in HOOKS if name not in ("_forward_pre_hooks",))
        assert torch.equal(again(data()[:2][0]), model(data()[:2][0]))
    assert all(one is model for one in told)


class OfTheRun:
    """What a hook of ours belongs to."""

    def tell(self, _module: nn.Module) -> None: ...

    def __deepcopy__(self, memo: object) -> None:
        raise AssertionError("the run was copied")


def test_a_copy_of_a_traced_module_leaves_the_run_alone() -> None:
    """torch.fx copies all that a module has, hooks too."""
    traced = torch.fx.symbolic_trace(make())
    listen(traced, OfTheRun().tell, OfTheRun().tell)
    assert torch.equal(copy.deepcopy(traced)(data()[:2][0]), traced(data()[:2][0]))


def test_hooks_of_the_script_can_still_be_removed() -> None:
    model = make()
    handle = model.register_forward_pre_hook(seen)
    joined(model, [])
    handle.remove()
    assert seen not in model._forward_pre_hooks.values()


class Stateful(MLP):
    """A module that says itself what is kept of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "told": 1}


def test_a_class_with_a_state_of_its_own_keeps_it() -> None:
    again = copy.deepcopy(joined(make(Stateful), []))
    assert again.told == 1
    assert "__getstate__" not in vars(again)


def test_a_joined_module_can_be_loaded_with_what_the_script_calls_safe() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        run.join(model, sgd(model))
        loss_of(model, *data()[:4]).backward()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        safe = [MLP, nn.Sequential, nn.Linear, nn.Tanh, OrderedDict, set]
        with torch.serialization.safe_globals(safe):
            loaded = torch.load(file, weights_only=True)
        assert torch.equal(loaded(data()[:2][0]), model(data()[:2][0]))
        return {}

    run_world(2, body)


@pytest.mark.parametrize("size", [1, 2])
def test_a_joined_optimizer_is_copied_and_saved_without_the_run(size: int) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer = run.join(model, adamw(model))
        loss_of(model, *data()[:4]).backward()
        optimizer.step()
        before: list[Tensor] = [p.detach().clone() for p in model.parameters()]
        file = io.BytesIO()
        torch.save(optimizer, file)
        assert b"shoal" not in file.getvalue()
        file.seek(0)
        for again in (copy.deepcopy(optimizer), torch.load(file, weights_only=False)):
            assert not again._optimizer_step_pre_hooks
            assert not again._optimizer_step_post_hooks
            for group in again.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            again.step()  # nobody is told of it, and nobody refuses it
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        return {}

    run_world(size, body)
