"""`prefetch=true` on processes: how long replies of servers are waited for, where 50 ms pass between two steps."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_servers import run_served
from torch import nn

from shoal.sync.server.shared_connection import SharedServerConnection
from shoal.testing.world import Result, WorkerWorld
from shoal.train.run import Run

STEPS, WIDTH, LOADING = 30, 2000, 0.05


class TimedConnection(SharedServerConnection):
    """Adds up the seconds of its waits."""

    waited = 0.0

    def wait(self, *what: Any) -> Any:
        began = time.perf_counter()
        try:
            return super().wait(*what)
        finally:
            TimedConnection.waited += time.perf_counter() - began


def seconds_waited(plan: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """The median step's, of both workers."""
    monkeypatch.setattr("shoal.train.servers.SharedServerConnection", TimedConnection)

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model, found = start(), nn.Linear(WIDTH, WIDTH), []
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        for _ in range(STEPS):
            before = TimedConnection.waited
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
            time.sleep(LOADING)
            found.append(TimedConnection.waited - before)
        return {"waited": torch.tensor(statistics.median(found))}

    return statistics.mean(float(result["waited"]) for result in run_served(2, plan, body))


@pytest.mark.soak("clock")
@pytest.mark.parametrize("mode", ["stale(0", "stale(2", "async("])
def test_geeps_half_of_the_waiting_for_16_mb_goes_away(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers take their turns, so neither is a straggler."""
    pace = f"server, {mode}, eager=true" if "stale" in mode else f"server, {mode}samples=static"
    plain, prefetched = (seconds_waited(f"{pace}{more})", monkeypatch) for more in ("", ", prefetch=true"))
    print(f"{mode}): {1e3 * plain:.2f} ms a step, with prefetching {1e3 * prefetched:.2f}")  # noqa: T201 (for docs)
    assert prefetched <= 0.5 * plain
