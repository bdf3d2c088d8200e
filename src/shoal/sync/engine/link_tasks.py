"""The collective tasks of one engine over links: what has started, in which order, and how each is made again.

The communication thread does the work while the backward pass runs; several tasks are under way at a time. A task only
reads what it sends, so after a loss it can be made and submitted again, in the same order.
"""

from collections.abc import Callable, Sequence

from shoal.core.clock import now
from shoal.groups.links import LinkedGroup
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.price import NetworkEstimate, merged
from shoal.transport.tasks import CollectiveTask


class LinkTasks(ExchangeEngine):
    """The part that sums and payloads over links share."""

    retryable = True

    def __init__(self, group: LinkedGroup, among: Sequence[int] | None = None) -> None:
        """`among`: only these ranks take part; None: the whole view."""
        self.group, self.channel, self.among = group, group.new_channel(), among
        self._tasks: dict[int, tuple[Callable[[], CollectiveTask], CollectiveTask]] = {}
        """Tasks of the exchange under way, in order, and how each is made again."""
        self._priorities: Sequence[int] = ()
        self._round = 0
        self._arrived: dict[int, float] = {}

    def prepare(self) -> None:
        self._round += 1
        self._tasks.clear()
        self._arrived.clear()

    def _submit(self, index: int, make: Callable[[], CollectiveTask]) -> None:
        task = make()
        # a channel per engine: engines do not wait for each other, and each keeps its own order
        task.channel, task.among = self.channel, self.among
        task.urgency = self._priority(index)
        self._tasks.pop(index, None)  # so that it becomes the last of the dictionary
        self._tasks[index] = (make, task)
        self.group.mesh.submit(task)

    def _priority(self, index: int) -> int:
        """Put the rest of one exchange before all of the next, which a peer cannot begin without it."""
        priority = self._priorities[index] if self._priorities else 0
        return self._round * len(self._priorities) + priority if priority else 0

    def _wait(self, index: int) -> CollectiveTask:
        task = self._tasks[index][1]
        self.group.mesh.wait(task, self.group.seconds)
        self._arrived[index] = task.ended or now()
        return task

    def set_priorities(self, priorities: Sequence[int]) -> None:
        self._priorities = priorities

    def is_done(self, index: int) -> bool:
        task = self._tasks.get(index)  # steps overlap: what a meter saw leave may belong to the step before
        return task is not None and task[1].done.is_set()

    def has_result(self, index: int) -> bool:
        """Return whether the result has arrived and nothing went wrong."""
        task = self._tasks.get(index)
        return task is not None and task[1].done.is_set() and task[1].error is None

    def arrival_time(self, index: int) -> float | None:
        return self._arrived.get(index)

    def estimate_network(self) -> NetworkEstimate:
        mesh = self.group.mesh
        links = (mesh.link(rank).out.estimate for rank in mesh.view.others)
        return merged(NetworkEstimate(link.rate, link.rtt) for link in links)

    def is_complete(self) -> bool:
        return all(self.has_result(index) for index in list(self._tasks))

    def retry(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for index, (make, _) in tasks.items():
            self._submit(index, make)

    def finish_locally(self) -> None:
        """Nothing to do: every result has arrived already."""

    def abandon(self) -> None:
        self._tasks.clear()
