"""Adagrad at the server: the step of each element shrinks with the gradients it has seen.

    squares += gradient^2;    values -= rate * gradient / (sqrt(squares) + epsilon)

Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR 2011. Dean et al.
2012 found that it makes Downpour SGD robust: an element that many stale gradients change gets small steps. Do not use
it in very long runs: its steps only shrink.
"""

import numpy as np

from shoal.sync.server.rules.base import FloatArray, ServerRule, as_float32


class AdagradRule(ServerRule):
    slots = 1
    zero_changes_nothing = True

    def __init__(self, rate: float, epsilon: float = 1e-10) -> None:
        self.rate, self.epsilon = as_float32(rate), as_float32(epsilon)

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        squares = slots[0]
        squares += update * update
        values -= self.rate * update / (np.sqrt(squares) + self.epsilon)
