"""Codec state in a checkpoint that another number of workers goes on from: what waits to be sent is conserved."""

import pytest
import torch

from shoal.train.checkpoint.residuals import dealt_again


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_total_over_workers_is_conserved(workers: int) -> None:
    torch.manual_seed(workers)
    shards = [
        {
            "0.parameter.a": torch.ones(3),
            "0.pace.residual.a": torch.randn(3, 4),
            "0.pace.q.a": torch.full((2,), 5.0),
            "1.pace.velocity.b": torch.randn(7),
        }
        for _ in range(4)
    ]
    share = dealt_again(shards, workers)
    assert set(share) == {"0.pace.residual.a", "0.pace.q.a", "1.pace.velocity.b"}
    for name in ("0.pace.residual.a", "1.pace.velocity.b"):
        torch.testing.assert_close(workers * share[name], sum(shard[name] for shard in shards))
    assert (share["0.pace.q.a"] == 5.0).all(), "what all hold alike stays as it is"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_waits_at_owners_is_a_part_of_the_total(workers: int) -> None:
    """Owners of shares lie anywhere in a layer, and one may own none of it: names and shapes differ."""
    torch.manual_seed(workers)
    owned = {0: (0, 5), 2: (5, 7)}
    shards, total = [], torch.zeros(12)
    for number in range(3):
        shard = {"0.pace.residual.a": torch.randn(3, 4)}
        total += shard["0.pace.residual.a"].view(-1)
        if number in owned:
            place, length = owned[number]
            shard |= {"0.pace.owner.a": torch.randn(1, length), "0.pace.owner_at.a": torch.tensor([place])}
            total[place : place + length] += shard["0.pace.owner.a"].view(-1)
        shards.append(shard)
    share = dealt_again(shards, workers)
    assert set(share) == {"0.pace.residual.a"}
    torch.testing.assert_close(workers * share["0.pace.residual.a"].view(-1), total)


def test_without_codecs_there_is_nothing_to_share() -> None:
    assert dealt_again([{"0.parameter.a": torch.ones(3)}] * 2, 3) == {}
