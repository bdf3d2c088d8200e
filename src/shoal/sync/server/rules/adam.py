"""Adam at the server: one estimate of the moments, from the gradients of all workers.

Kingma & Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, in the form of torch.optim.Adam. Do not use it
where gradients are very stale: its second moment follows the newest gradients, and does not damp late ones as Adagrad
does.
"""

import numpy as np

from shoal.sync.server.rules.base import FloatArray, ServerRule, as_float32


class AdamRule(ServerRule):
    slots = 2

    def __init__(self, rate: float, first: float = 0.9, second: float = 0.999, epsilon: float = 1e-8) -> None:
        self.rate, self.first, self.second, self.epsilon = rate, first, second, as_float32(epsilon)

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        mean, square = slots
        mean *= as_float32(self.first)
        mean += as_float32(1 - self.first) * update
        square *= as_float32(self.second)
        square += as_float32(1 - self.second) * (update * update)
        # count + 1: this update counts too, and the first one would divide by 0
        size = as_float32(self.rate / (1 - self.first ** (count + 1)))
        root = np.sqrt(square / as_float32(1 - self.second ** (count + 1)))
        values -= size * mean / (root + self.epsilon)
