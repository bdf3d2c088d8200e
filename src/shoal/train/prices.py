"""What a step of this run would cost with no codec, and with half precision: what any other codec must beat.

Only these two lose nothing worth mentioning, so they can be advised without knowing what the script trains.
"""

import torch

from shoal.sync.price import Price, summed, summing_hops
from shoal.wire.trial import try_adding, try_casting


def prices(elements: float, workers: int, wired: bool) -> list[Price]:
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
        Price("", 0.0, none * elements, wire, hops),
        Price("fp16", cast.encode * elements, half * elements, wire / 2, hops),
    ]
