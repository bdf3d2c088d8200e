"""Local SGD by PyTorch's model averager: every worker steps by itself, and every 8 steps the models are averaged.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lin et al., "Don't Use Large Mini-Batches, Use
Local SGD", ICLR 2020. Between averages the workers' models differ, so a result belongs to worker 0's model.
"""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from shoal.bench.peers.base import BenchPeer, PeerCost, PeerPlace, trained
from shoal.bench.peers.gloo import close_group, open_group
from shoal.core.clock import now

PERIOD = 8


class LocalSgdPeer(BenchPeer):
    """No gradient travels: there is nothing for DDP to do, so it is left out."""

    def open(self, place: PeerPlace) -> None:
        self._size = place.size
        open_group(place)

    def attach(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], cost: PeerCost) -> None:
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        # its own count begins with an average; beginning at 1, the first comes after `PERIOD` steps
        averager = PeriodicModelAverager(period=PERIOD)
        averager.step = 1
        parameters = trained(models)
        whole = sum(p.nbytes for p in parameters)

        def average(*_: object) -> None:
            began, due = now(), averager.step % PERIOD == 0
            averager.average_parameters(iter(parameters))  # type: ignore[arg-type]
            cost.spent.wait += now() - began
            if due:
                cost.sent(4 * sum(p.numel() for p in parameters), whole, self._size)

        # At one optimizer, because all parameters are averaged together.
        for optimizer in optimizers[:1]:
            optimizer.register_step_post_hook(average)

    def close(self) -> None:
        close_group()
