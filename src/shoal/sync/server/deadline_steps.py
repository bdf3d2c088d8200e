"""Steps of all workers together that do not wait for the slowest: backup workers, and a deadline.

    after_step     push the change ──> the step is taken with the first p - b of them, or when its time is over
                   ──> pull: everybody who was in time goes on from the same values
    late           the push comes to nothing (or counts in the step that is open now); pull, and skip to that step

Chen et al., "Revisiting Distributed Synchronous SGD", ICLR workshop 2016. Samples are leased, so a slow worker trains
fewer batches. Those of a push that came to nothing are reported as not trained: they go back to the pool, and are
leased again in a later round. What the optimizer of a late worker remembers (momentum) stays as its own step left it.
Do not use it among equal workers: there every step waits for nobody anyway, and backups only throw work away.
"""

from collections.abc import Collection

from shoal.membership.view import MembershipView
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.shard_state import PushOutcome
from shoal.sync.server.synchronizer import ServerStepsSynchronizer
from shoal.sync.trained import count_samples


class DeadlineStepsSynchronizer(ServerStepsSynchronizer):
    """Of one part, on one server: several would each choose for themselves which pushes came in time."""

    leased = True

    def __init__(
        self,
        exchange: GradientExchange,
        servers: ServerConnection,
        pace: ServerPace,
        steps: int,
        payloads: ShardPayloads | None = None,
    ) -> None:
        super().__init__(exchange, servers, pace, steps, payloads)
        self._unused: set[int] = set()

    @property
    def unused_batches(self) -> Collection[int]:
        return self._unused

    def _judge(self, outcomes: set[PushOutcome]) -> None:
        super()._judge(outcomes)
        self.server_totals.late += bool(outcomes & {PushOutcome.DROPPED, PushOutcome.ADDED})
        if PushOutcome.DROPPED in outcomes:
            self._unused.update(range(self._named - len(self._pushed), self._named))
            self.server_totals.unused += count_samples(self._pushed)

    def _begin_round(self, view: MembershipView) -> None:
        super()._begin_round(view)
        self._unused.clear()

    def _pull(self, numbers: dict[int, int]) -> None:
        super()._pull(numbers)
        client = self._client
        client.clock = max(client.clock, client.minimum)  # a worker that was late skips the steps of the others
