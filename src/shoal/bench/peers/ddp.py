"""PyTorch's DistributedDataParallel on gloo, plain or with one of its communication hooks.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020; low rank: Vogels et
al., "PowerSGD", NeurIPS 2019. The script keeps its model, names and attributes: only its `forward` leads through DDP.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shoal.bench.peers.base import BenchPeer, PeerCost, PeerPlace, trained
from shoal.bench.peers.gloo import close_group, open_group

POWER_FROM = 2
"""The step from which PowerSGD compresses: the least it accepts; its own default of 1000 would measure plain DDP."""
POWER_RANK = 1
ONE_BUCKET_MB = 1000
"""PowerSGD's hook has several collectives per bucket, whose order gloo does not keep: with several it may deadlock."""


class DdpPeer(BenchPeer):
    """Plain DDP with its default buckets; the base of those with a hook."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self._wrapped: list[DistributedDataParallel] = []
        self._steps = 0

    def open(self, place: PeerPlace) -> None:
        self._size = place.size
        open_group(place)

    def attach(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], cost: PeerCost) -> None:
        for model in models:
            # DDP refuses a module in which nothing needs a gradient.
            if trained([model]):
                self._wrapped.append(self._wrap(model))
        parameters = trained(models)

        def count(*_: object) -> None:
            cost.sent(4 * sum(p.numel() for p in parameters), self.payload(parameters), self._size)
            self._steps += 1

        # At one optimizer, because all gradients of a step travel once.
        for optimizer in optimizers[:1]:
            optimizer.register_step_pre_hook(count)

    def _wrap(self, model: nn.Module) -> DistributedDataParallel:
        plain = model.forward
        wrapped = DistributedDataParallel(_SyncedCore(model, plain), **self.options)
        self.hook(wrapped)

        def forward(*args: Any, **words: Any) -> Any:
            # evaluation may be worker 0's alone, and DDP would wait for the others to share buffers
            return wrapped(*args, **words) if torch.is_grad_enabled() else plain(*args, **words)

        model.forward = forward
        return wrapped

    def hook(self, wrapped: DistributedDataParallel) -> None:
        """Change what travels; plain DDP does not."""

    def payload(self, parameters: Sequence[Tensor]) -> int:
        """Bytes of a step's payload."""
        return sum(p.nbytes for p in parameters)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        with ExitStack() as stack:
            for wrapped in self._wrapped:
                stack.enter_context(wrapped.no_sync())
            yield

    def close(self) -> None:
        self._wrapped.clear()
        close_group()


class DdpFp16Peer(DdpPeer):
    """Gradients travel as float16."""

    def hook(self, wrapped: DistributedDataParallel) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        wrapped.register_comm_hook(dist.group.WORLD, fp16_compress_hook)

    def payload(self, parameters: Sequence[Tensor]) -> int:
        return sum(2 * p.numel() for p in parameters)


class DdpPowerSgdPeer(DdpPeer):
    """Gradient matrices travel as their best approximation of rank 1, with error feedback."""

    options: ClassVar[dict[str, Any]] = {"bucket_cap_mb": ONE_BUCKET_MB}

    def hook(self, wrapped: DistributedDataParallel) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        state = PowerSGDState(None, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=POWER_FROM)
        wrapped.register_comm_hook(state, powerSGD_hook)

    def payload(self, parameters: Sequence[Tensor]) -> int:
        return super().payload(parameters) if self._steps < POWER_FROM else sum(map(_low_rank, parameters))


def _low_rank(parameter: Tensor) -> int:
    """Bytes of a gradient as PowerSGD sends it: two factors, where they are at most half of it."""
    rows = parameter.shape[0] if parameter.dim() > 1 else 1
    factors = POWER_RANK * (rows + parameter.numel() // max(1, rows))
    small = parameter.dim() > 1 and 2 * factors < parameter.numel()
    return (factors if small else parameter.numel()) * parameter.element_size()


class _SyncedCore(nn.Module):
    """The module that DDP wraps: the model with its own forward, from before `forward` was replaced by DDP's."""

    def __init__(self, model: nn.Module, plain: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._plain = model, plain

    def forward(self, *args: Any, **words: Any) -> Any:
        return self._plain(*args, **words)
