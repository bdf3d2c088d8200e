"""Gradient descent at the server, with or without momentum: SGD, Polyak's and Nesterov's.

    momentum = m * momentum + gradient
    values  -= rate * gradient                     sgd
    values  -= rate * momentum                     momentum
    values  -= rate * (gradient + m * momentum)    nesterov

Robbins & Monro 1951; Polyak 1964; Sutskever et al., "On the importance of initialization and momentum in deep
learning", ICML 2013, in the form of torch.optim.SGD. Do not use a high momentum under `async`: asynchrony acts as a
momentum of about 1 - 1/p by itself (Mitliagkas et al., "Asynchrony begets momentum", 2016).
"""

from shoal.sync.server.rules.base import FloatArray, ServerRule, as_float32


class SgdRule(ServerRule):
    zero_changes_nothing = True

    def __init__(self, rate: float) -> None:
        self.rate = as_float32(rate)

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        values -= self.rate * update


class MomentumRule(SgdRule):
    slots = 1
    # momentum moves elements whose gradient is 0, too
    zero_changes_nothing = False

    def __init__(self, rate: float, momentum: float = 0.9) -> None:
        super().__init__(rate)
        self.momentum = as_float32(momentum)

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        self._accumulate(slots[0], update)
        values -= self.rate * slots[0]

    def _accumulate(self, momentum: FloatArray, update: FloatArray) -> None:
        momentum *= self.momentum
        momentum += update


class NesterovRule(MomentumRule):
    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        self._accumulate(slots[0], update)
        values -= self.rate * (update + self.momentum * slots[0])
