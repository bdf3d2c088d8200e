"""What codecs have not sent yet, when another number of workers goes on: the total over all workers stays as it was."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.wire.redeal import folded, merge, split

MARK = ".pace."


def dealt_again(shards: Sequence[Mapping[str, Tensor]], workers: int) -> dict[str, Tensor]:
    """One worker's part of what the paces in `shards` carried, for `workers` workers alike."""
    found: dict[str, Tensor] = {}
    for number in sorted({name.partition(MARK)[0] for shard in shards for name in shard if MARK in name}):
        before = f"{number}{MARK}"
        carried = [{n.removeprefix(before): t for n, t in shard.items() if n.startswith(before)} for shard in shards]
        share = split(merge([folded(one) for one in carried]), workers)[0]
        found |= {f"{before}{name}": tensor for name, tensor in share.items()}
    return found
