"""Two workers in one process train a small network through a codec: what a codec does to learning, in a second."""

from functools import cache

import torch
from torch import Tensor, nn

from shoal.plan import Plan
from shoal.plan.compose import compose
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout

WORKERS = 2


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes by a teacher network: learnable, not linear."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1024, 20, generator=generator)
    hidden = torch.tanh(inputs @ torch.randn(20, 12, generator=generator))
    return inputs, (hidden @ torch.randn(12, 4, generator=generator)).argmax(1)


@cache
def learn(plan: str, steps: int = 200, lr: float = 0.2, momentum: float = 0.0, batch: int = 64) -> float:
    """The loss on all data after `steps` steps of SGD; the plan's codec is between the workers' gradients."""
    codec = compose(Plan.parse(plan).wire, WORKERS)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 4))
    named = list(model.named_parameters())
    layout = FlatLayout.of([(name, tuple(p.shape)) for name, p in named])
    states = [codec.init_state(layout) if codec else {} for _ in range(WORKERS)]
    inputs, labels = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    generator = torch.Generator().manual_seed(2)
    for step in range(steps):
        mean = torch.zeros(layout.numel)
        for worker in range(WORKERS):
            chosen = torch.randint(len(inputs), (batch // WORKERS,), generator=generator)
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            flat = torch.cat([g.reshape(-1) for g in gradients]) / WORKERS
            if codec is None:
                mean += flat
                continue
            payload, states[worker] = codec.encode(flat, layout, states[worker], EncodeContext(0, step, worker, 0))
            mean += codec.decode(payload, layout)
        for part, (_, parameter) in zip(layout.parts, named, strict=True):
            parameter.grad = mean[part.offset : part.end].view(part.shape)
        optimizer.step()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), labels))
