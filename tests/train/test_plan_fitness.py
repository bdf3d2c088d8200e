"""A switch to a plan that could not train what a script has joined is refused, with the reason."""

import pytest
import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.plan.needs import check_joined
from shoal.plan.plan import Plan
from shoal.train.members import JoinedMembers, sort_members
from shoal.train.plan_fitness import find_misfits

EVERY_KIND = [
    "allreduce",
    "local(4, overlap=true)",
    "allreduce, stale(2)",
    "server, stale(1)",
    "server, deadline(0.1)",
    "shared",
    "mix",
    "datagrams",
]


def joined(model: nn.Module, *optimizers: torch.optim.Optimizer) -> JoinedMembers:
    return sort_members((model, *optimizers))


def misfit(plan: str, *members: JoinedMembers, loaders: list[str] | None = None) -> str:
    """Why they cannot be trained by it; empty if they can."""
    found = [each for each in map(find_misfits, members) if each is not None]
    try:
        check_joined(Plan.parse(plan), found, [""] if loaders is None else loaders, len(members[0].parameters))
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("plan", EVERY_KIND)
def test_a_plain_model_with_its_optimizer_fits_every_plan(plan: str) -> None:
    model = nn.Linear(3, 2)
    assert misfit(plan, joined(model, torch.optim.SGD(model.parameters(), lr=0.1))) == ""


def of_double() -> JoinedMembers:
    model = nn.Linear(3, 2).double()
    return joined(model, torch.optim.SGD(model.parameters(), lr=0.1))


def of_rprop() -> JoinedMembers:
    model = nn.Linear(3, 2)
    return joined(model, torch.optim.Rprop(model.parameters(), lr=0.1))


def of_no_optimizer() -> JoinedMembers:
    return joined(nn.Linear(3, 2))


def of_sparse() -> JoinedMembers:
    model = nn.Embedding(5, 2, sparse=True)
    return joined(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("plan", "members", "why"),
    [
        ("server, stale(2)", of_double(), "'weight' is not of float32"),
        ("mix", of_double(), "'weight' is torch.float64 on cpu"),
        ("datagrams", of_double(), "'weight' is torch.float64 on cpu"),
        ("shared", of_rprop(), "does not know what races do to Rprop"),
        ("local(4)", of_no_optimizer(), "join() got no optimizer"),
        ("server, async", of_no_optimizer(), "join() got none"),
        ("allreduce, stale(2)", of_sparse(), "'weight' has sparse gradients"),
        ("local(6, fragments=3)", of_rprop(), "2 parameter tensors"),
    ],
)
def test_what_does_not_fit_is_named(plan: str, members: JoinedMembers, why: str) -> None:
    assert why in misfit(plan, members)
    assert misfit("allreduce", members) == ""


@pytest.mark.parametrize("plan", ["local(4, overlap=true)", "allreduce, stale(1)", "server, deadline(0.1)"])
def test_some_plans_are_for_one_join(plan: str) -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    members = [joined(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (one, two)]
    assert "the script has made 2" in misfit(plan, *members)
    assert misfit("local(4)", *members) == ""


def test_leases_need_a_loader_whose_samples_can_be_leased() -> None:
    model = nn.Linear(3, 2)
    members = joined(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plan = "local(4, samples=leased)"
    assert "no loader is joined" in misfit(plan, members, loaders=[])
    assert "no length" in misfit(plan, members, loaders=["", "no length"])
    assert misfit(plan, members, loaders=["", ""]) == ""
