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


def test_without_codecs_there_is_nothing_to_share() -> None:
    assert dealt_again([{"0.parameter.a": torch.ones(3)}] * 2, 3) == {}
