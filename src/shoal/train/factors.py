"""Sees the factors of linear layers' gradients as they pass: inputs in the forward pass, output gradients after it.

    forward of nn.Linear       its input is kept with its output
    backward of the output     input and output gradient are one more pair of factors of the weight
    the gradient leaves        the codec takes all pairs since the last exchange (wire/codecs/factors.py)

Only weights that nothing but `nn.Linear` owns are watched, so a tied embedding travels as any gradient. What else may
change a gradient (clipping in a hook, several shares in one step, autocast) is found by the codec, which compares.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.exchange.compressed import CompressedExchange
from shoal.wire.codecs.factors import FactorCodec
from shoal.wire.layout import FlatLayout

Aggregation = Callable[[FactorCodec, Sequence[FlatLayout]], PayloadAggregator]
Pairs = list[tuple[Tensor, Tensor]]


class LinearFactors:
    """Of some weights; remembers at most `most` rows of each, and nothing once they are more."""

    def __init__(self, layers: Mapping[str, Sequence[nn.Linear]], most: int, warn: Callable[[str], None]) -> None:
        self._most, self._warn = most, warn
        self._pairs: dict[str, Pairs | None] = {name: [] for name in layers}
        self._rows = dict.fromkeys(layers, 0)
        self._told: set[str] = set()
        self._handles: list[RemovableHandle] = [
            layer.register_forward_hook(self._hook(name)) for name, several in layers.items() for layer in several
        ]

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def passed(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            if output.requires_grad and torch.is_grad_enabled():
                inputs = given[0].detach()
                output.register_hook(lambda gradient: self._add(name, gradient.detach(), inputs))  # type: ignore[no-untyped-call]

        return passed

    def _add(self, name: str, gradient: Tensor, inputs: Tensor) -> None:
        outer, inner = gradient.reshape(-1, gradient.shape[-1]), inputs.reshape(-1, inputs.shape[-1])
        self._rows[name] += len(outer)
        pairs = self._pairs[name]
        if self._rows[name] > self._most or pairs is None:
            self._pairs[name] = None
        else:
            pairs.append((outer, inner))

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        if name not in self._pairs:  # kernels are tried with a layer of no model
            return None
        pairs, self._pairs[name], self._rows[name] = self._pairs[name], [], 0
        if not pairs:
            return None
        outer, inner = (torch.cat([pair[side].to("cpu", torch.float32) for pair in pairs]) for side in (0, 1))
        return outer, inner

    def sent_whole(self, name: str, reason: str) -> None:
        if name in self._pairs and name not in self._told:
            self._told.add(name)
            self._warn(f"factors: the gradient of {name} travelled as it is: {reason}")

    def close(self) -> None:
        """Watch no layer any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class FactorExchange(CompressedExchange):
    """Gathers the factors of weights whose layers are watched; closed, it watches them no more."""

    def __init__(self, inner: GradientExchange, factors: LinearFactors, aggregate: Aggregation, text: str) -> None:
        super().__init__(inner, lambda layouts: aggregate(FactorCodec(factors), layouts), text)
        self._factors = factors

    def close(self) -> None:
        super().close()
        self._factors.close()


def linear_layers(models: Sequence[nn.Module], names: Mapping[int, str]) -> dict[str, list[nn.Linear]]:
    """The layers that own each weight, where all owners are `nn.Linear`; `names`: of parameters, by their id."""
    owners: dict[str, dict[int, nn.Module]] = {}
    for model in models:
        if hasattr(model, "_orig_mod"):  # hooks would become a part of what is compiled
            continue
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if id(parameter) in names:
                    owners.setdefault(names[id(parameter)], {})[id(module)] = module
    return {
        name: [module for module in several.values() if isinstance(module, nn.Linear)]
        for name, several in owners.items()
        # not a subclass: out_proj of nn.MultiheadAttention is one, and its forward is never called
        if all(type(module) is nn.Linear and names.get(id(module.weight)) == name for module in several.values())
    }
