"""What one copy in shared memory saves beside servers: row 20 of docs/systems.toml."""

from collections.abc import Callable

import torch
from by_servers import run_served
from loops import data, loader, sgd, train
from models import make
from test_server_systems import told

from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run

STEPS = 6


def test_lim_a_write_is_seen_by_all_at_once_and_steps_take_less_than_half_of_the_bytes_of_sockets() -> None:
    """Lim et al.: parameters in a memory that every worker has mapped."""

    def in_memory(world: WorkerWorld) -> Result:
        run, model = world.start("shared"), make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(8 * STEPS)))
        train(model, optimizer, (steps for _ in run.epochs(1)))
        optimizer.step()  # its gradients are none: from here on this worker holds the copy
        world.group.gather(b"")
        if world.group.rank == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(7.0)
        world.group.gather(b"")
        assert all((parameter == 7.0).all() for parameter in model.parameters())
        return {"bytes": torch.tensor(run._together.joined[0].exchange.observer.wire_bytes)}

    def by_sockets(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(8 * STEPS)))
        train(model, optimizer, (steps for _ in run.epochs(1)))
        run.close()
        found = told(run)
        return {"bytes": torch.tensor(found.up + found.down)}

    shared = sum(int(each["bytes"]) for each in run_world(2, in_memory))
    served = sum(int(each["bytes"]) for each in run_served(2, "server, async", by_sockets))
    size = sum(4 * parameter.numel() for parameter in make("mlp").parameters())
    assert served >= 2 * 2 * STEPS * size, "two workers push and pull"
    assert 2 * shared <= served
