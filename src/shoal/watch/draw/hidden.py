"""How much of the transfer computing has hidden: one line, where links told when things came in."""

from rich.text import Text

from shoal.watch.figures import milliseconds
from shoal.watch.worker import WorkerRecord


def hidden_line(workers: list[WorkerRecord]) -> Text | None:
    """Of the mean step of all workers."""
    steps = sum(worker.steps for worker in workers)
    transfer = sum(worker.transfer * worker.steps for worker in workers) / max(1, steps)
    exposed = sum(worker.exposed * worker.steps for worker in workers) / max(1, steps)
    if not transfer:
        return None
    share = 1 - exposed / transfer
    return Text(f"{milliseconds(transfer)} ms a step, {share:.0%} of it hidden behind computing")
