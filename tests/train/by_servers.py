"""Worlds of workers with server processes beside them."""

from collections.abc import Callable
from functools import partial

from shoal.launch.services import ServiceProcesses
from shoal.plan.plan import Plan
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run
from shoal.train.servers import plan_services

Body = Callable[[WorkerWorld, Callable[..., Run]], Result | None]


def run_served(size: int, plan: str, body: Body) -> list[Result]:
    """Run `body(world, start)` in `size` workers of `plan`; `start()` gives the run."""
    services = ServiceProcesses(plan_services(Plan.parse(plan), size))
    services.open()
    try:
        return run_world(size, lambda world: body(world, partial(world.start, plan, servers=services.addresses)))
    finally:
        services.close()
