"""The state of a remote worker is taken only if it has the form of one's own."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from shoal.core.errors import PayloadError
from shoal.groups.base import GiverLost, SingleWorkerGroup
from shoal.membership.view import MembershipView
from shoal.train.state import adopt_state, flatten
from shoal.train.state_check import check_states


def made(steps: int, kind: Callable[..., Optimizer] = Adam) -> tuple[list[Any], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 10)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return [optimizer, scheduler], list(model.parameters())


def text(owners: list[Any], change: Callable[[list[Any]], object] = lambda states: None) -> bytes:
    states = [owner.state_dict() for owner in owners]
    change(states)
    return msgspec.json.encode(flatten(states, []))


@pytest.mark.parametrize("kind", [Adam, lambda parameters, lr: SGD(parameters, lr, momentum=0.9)])
@pytest.mark.parametrize(("theirs", "own"), [(1, 0), (4, 3), (3, 3)])
def test_an_honest_state_fits(theirs: int, own: int, kind: Callable[..., Optimizer]) -> None:
    owners, parameters = made(own, kind)
    check_states(text(made(theirs, kind)[0]), owners, parameters)
    check_states(b"", owners, parameters)


def grow(state: dict[int, Any]) -> None:
    state |= {n: {f"{m}": torch.tensor(0.0) for m in range(9)} for n in range(9)}


LIES: dict[str, Callable[[list[Any]], object]] = {
    "a huge buffer": lambda states: states[0]["state"][0].update(exp_avg=torch.empty(1 << 30, device="meta")),
    "another shape": lambda states: states[0]["state"][0].update(exp_avg=torch.zeros(4, 2)),
    "another dtype": lambda states: states[0]["state"][0].update(exp_avg=torch.zeros(4, 3, dtype=torch.int8)),
    "too many entries": lambda states: grow(states[0]["state"]),
    "no learning rate": lambda states: states[0]["param_groups"][0].pop("lr"),
    "a text for a number": lambda states: states[0]["param_groups"][0].update(lr="fast"),
    "no number": lambda states: states[0]["param_groups"][0].update(lr=None),
    "other parameters": lambda states: states[0]["param_groups"][0].update(params=[0, 1, 2]),
    "another group": lambda states: states[0]["param_groups"].append({}),
    "a list for a dictionary": lambda states: states[0].update(state=[]),
    "another key": lambda states: states[1].update(code="x"),
    "one owner less": lambda states: states.pop(),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("own", [0, 1])
def test_what_does_not_fit_is_refused_before_memory_is_taken(lie: str, own: int) -> None:
    if own == 0 and lie == "another dtype":
        return  # where this worker has nothing yet, an optimizer may keep its tensors in any dtype
    owners, parameters = made(own)
    with pytest.raises(PayloadError, match="state"):
        check_states(text(made(1)[0], LIES[lie]), owners, parameters)


@pytest.mark.parametrize("noise", [b"[]", b"{}", b"[1,2]", b"[{},{}]", b"\xff", b"[[],[]]", b"null"])
def test_noise_is_refused(noise: bytes) -> None:
    owners, parameters = made(1)
    with pytest.raises((PayloadError, msgspec.MsgspecError)):
        check_states(noise, owners, parameters)


class Handed(SingleWorkerGroup):
    """Worker 0, to whom a remote worker hands over its state; it is lost when so many things were said."""

    def __init__(self, text: bytes, value: float, lost_after: int) -> None:
        super().__init__()
        self.text, self.value, self.left = text, value, lost_after
        self.session.view = MembershipView(1, ("w0.0", "w1.0"))
        self.session.remote = lambda member: member == "w1.0"  # type: ignore[method-assign]

    def _lose(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.session.view = MembershipView(2, ("w0.0",))

    def gather(self, data: bytes, limit: int = 0, check: Any = None) -> list[bytes]:
        check(self.text)
        self._lose()
        return [data, self.text][: len(self.session.view)]

    def broadcast(self, tensors: Any, givers: Any = ()) -> None:
        self.giver(givers)
        for tensor in tensors:
            tensor.detach().fill_(self.value)
        self._lose()


@pytest.mark.parametrize("lost_after", [0, 1, 2, 3])
def test_a_remote_giver_that_is_lost_in_the_middle_leaves_everything_as_it_was(lost_after: int) -> None:
    owners, parameters = made(1)
    before = [parameter.detach().clone() for parameter in parameters]
    group = Handed(text(made(2)[0]), 7.0, lost_after)
    taken = adopt_state(
        group, [], owners[:1], parameters, ["w1.0"], check=lambda said, there: check_states(said, there, parameters)
    )
    assert taken == (lost_after == 3)
    same = all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert same != taken
    assert taken or owners[0].state_dict()["state"][0]["step"] == 1.0


def test_one_of_the_runs_own_that_is_lost_ends_it_as_before() -> None:
    owners, parameters = made(1)
    group = Handed(text(made(2)[0]), 7.0, 0)
    group.session.remote = lambda member: False  # type: ignore[method-assign]
    with pytest.raises(GiverLost, match="all that know the state"):
        adopt_state(group, [], owners[:1], parameters, ["w1.0"], check=lambda said, there: None)
