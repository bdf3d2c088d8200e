"""What synchronizers carry, when another number of workers goes on: each tensor by its rule (`sync/state.py`).

What codecs have not sent yet is a sum: its total over all workers stays as it was. Checkpoints of earlier versions have
no rules; all they carry is of codecs, whose names tell.
"""

from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor

from shoal.sync.state import MergeRule, StateTensor, redistribute
from shoal.wire.redeal import folded, merge, split

MARK = ".pace."
RULES = ".merge"
"""After the number of a join: the rules of what it carries."""


def read_rules(texts: Mapping[str, str]) -> dict[str, MergeRule]:
    """Of all joins, by the names their tensors have in a checkpoint."""
    found: dict[str, MergeRule] = {}
    for key, text in texts.items():
        if key.endswith(RULES):
            rules = msgspec.json.decode(text, type=dict[str, MergeRule])
            found |= {f"{key.removesuffix(RULES)}{MARK}{name}": rule for name, rule in rules.items()}
    return found


def dealt_again(
    shards: Sequence[Mapping[str, Tensor]], workers: int, rules: Mapping[str, MergeRule] | None = None
) -> dict[str, Tensor]:
    """One worker's part of what the synchronizers in `shards` carried, for `workers` workers alike."""
    rules = {name: rule for name, rule in (rules or {}).items() if rule != "sum"}
    ruled = [
        {name: StateTensor(shard[name], rule) for name, rule in rules.items() if name in shard} for shard in shards
    ]
    found = {name: one.values for name, one in redistribute(ruled, workers).items()}
    rest = [{name: tensor for name, tensor in shard.items() if MARK in name and name not in rules} for shard in shards]
    for number in sorted({name.partition(MARK)[0] for shard in rest for name in shard}):
        before = f"{number}{MARK}"
        carried = [{n.removeprefix(before): t for n, t in shard.items() if n.startswith(before)} for shard in rest]
        share = split(merge([folded(one) for one in carried]), workers)[0]
        found |= {f"{before}{name}": tensor for name, tensor in share.items()}
    return found
