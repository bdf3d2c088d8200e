"""What `wire(auto)` may choose, and what each candidate would cost."""

import typing
from collections.abc import Sequence

import torch
from torch.optim import SGD, Optimizer

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.sync.aggregate.choose import choose, gathered, staged
from shoal.sync.price import CodecPrice, summed, summing_hops
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import CastCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.trial import try_adding, try_casting, try_codec


def prices(elements: float, workers: int, wired: bool) -> list[CodecPrice]:
    """For a gradient of so many elements; `wired`: whether anything goes over sockets at all."""
    hops, cast = summing_hops(workers), try_casting()
    if wired:  # whoever carries it adds up beside the computing
        none, half = 0.0, cast.decode
        wire = summed(4 * elements, workers)
    else:
        none = (workers - 1) * try_adding()
        half = (workers - 1) * try_adding(torch.float16) + cast.decode
        wire = 0.0
    return [
        CodecPrice("", 0.0, none * elements, wire, hops),
        CodecPrice("fp16", cast.encode * elements, half * elements, wire / 2, hops),
    ]


ANY, ONLY_SGD = ("fp16", "int8"), ("onebit", "topk(0.01)")
"""Those that lose least first."""


def codecs_to_try(optimizers: Sequence[Optimizer], workers: int) -> dict[str, GradientCodec]:
    """Text of the terms -> codec, for a mean that these optimizers use."""
    # error feedback is a method for SGD; with other optimizers the result cannot be promised
    plain = bool(optimizers) and all(isinstance(optimizer, SGD) for optimizer in optimizers)
    found = {}
    for text in (*ANY, *(ONLY_SGD if plain else ())):
        wire = Plan.parse(text).wire
        codec = compose(wire, workers)
        assert codec is not None
        found[", ".join(map(str, wire))] = codec
    return found


def price_of(name: str, codec: GradientCodec, layouts: Sequence[FlatLayout], workers: int) -> CodecPrice:
    """Seconds by a trial here, bytes by arithmetic."""
    elements = sum(layout.numel for layout in layouts)
    if codec.summed_as == "cast":
        cast = try_casting(typing.cast(CastCodec, codec).dtype)
        wire = summed(cast.sent * elements, workers)
        return CodecPrice(name, cast.encode * elements, cast.decode * elements, wire, summing_hops(workers))
    tried = try_codec(codec)
    if choose(codec, layouts, workers) == "twostage":  # the owner's share is encoded again, and decoded twice
        encode, decodes, wire, hops = 1 + 1 / workers, 2, staged(codec, layouts, workers), 2
    else:
        encode, decodes, wire, hops = 1.0, workers, gathered(codec, layouts, workers), 1
    return CodecPrice(name, encode * tried.encode * elements, decodes * tried.decode * elements, wire, hops)
