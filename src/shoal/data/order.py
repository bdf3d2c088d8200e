"""The order in which a shuffled epoch goes through its samples, however many workers share them."""

import torch

from shoal.data.turn import PassKey


def order(seed: int, epoch: int, turn: int, size: int) -> list[int]:
    """A permutation of `range(size)`: a pure function of the arguments, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(PassKey(seed, epoch, turn).mix("order"))
    return torch.randperm(size, generator=generator).tolist()
