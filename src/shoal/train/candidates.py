"""What `wire(auto)` may choose, and what each would cost: codecs that are known to train as well as none.

fp16 and int8 are unbiased, or nearly: they go with any optimizer. onebit and topk rest on error feedback, whose proofs
and whose measurements are of SGD (with AdamW they fell points behind: docs/plans.md), so only SGD gets them. What moves
the optimizer's own momentum into the codec (dgc) changes the script's training, and is left to the user.
"""

from collections.abc import Sequence

from torch.optim import SGD, Optimizer

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.sync.meet.choose import choose, gathered, staged
from shoal.sync.price import Price, summed, summing_hops
from shoal.wire.codec import Codec
from shoal.wire.codecs.cast import Cast
from shoal.wire.layout import Layout
from shoal.wire.trial import try_casting, try_codec

ANY, ONLY_SGD = ("fp16", "int8"), ("onebit", "topk(0.01)")
"""Those that lose least first."""


def codecs_to_try(optimizers: Sequence[Optimizer], workers: int) -> dict[str, Codec]:
    """Text of the terms -> codec, for a mean that these optimizers use."""
    plain = bool(optimizers) and all(isinstance(optimizer, SGD) for optimizer in optimizers)
    found = {}
    for text in (*ANY, *(ONLY_SGD if plain else ())):
        wire = Plan.parse(text).wire
        codec = compose(wire, workers)
        assert codec is not None
        found[", ".join(map(str, wire))] = codec
    return found


def price_of(name: str, codec: Codec, layouts: Sequence[Layout], workers: int) -> Price:
    """Seconds by a trial here, bytes by arithmetic."""
    elements = sum(layout.numel for layout in layouts)
    if isinstance(codec, Cast):
        cast = try_casting(codec.dtype)
        wire = summed(cast.sent * elements, workers)
        return Price(name, cast.encode * elements, cast.decode * elements, wire, summing_hops(workers))
    tried = try_codec(codec)
    if choose(codec, layouts, workers) == "twostage":  # the owner's share is encoded again, and decoded twice
        encode, decodes, wire, hops = 1 + 1 / workers, 2, staged(codec, layouts, workers), 2
    else:
        encode, decodes, wire, hops = 1.0, workers, gathered(codec, layouts, workers), 1
    return Price(name, encode * tried.encode * elements, decodes * tried.decode * elements, wire, hops)
