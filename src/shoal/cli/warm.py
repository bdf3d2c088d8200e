"""Imports and compiles what workers need before they are forked."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.plan.plan import Plan


def warm(plan: "Plan | None" = None, workers: int = 1, links: bool = False) -> None:
    """Import, and compile, what every worker needs: they are forked with it, and share its memory."""
    import torch

    import shoal.train.run  # noqa: F401

    if plan is not None:
        from shoal.train.compiling import kernels_of_plan
        from shoal.wire import kernels

        coded = str(plan) if plan.parts else ", ".join(map(str, plan.codecs)) or str(plan.order)
        kernels.warm(kernels_of_plan(plan, workers, links), coded)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer of a process imports 800 modules more
