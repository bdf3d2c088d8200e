"""Rounding at random: whole numbers beside the value, the right mean, and the same draw for the same key."""

import torch

from shoal.train.precision.rounding import noise, whole


def test_the_mean_is_the_value_and_nothing_else_is_drawn() -> None:
    values = torch.linspace(-3, 3, 61)
    draws = torch.stack([whole(values, noise(values, 3, seed)) for seed in range(2000)])
    assert ((draws == values.floor()) | (draws == values.ceil()) | (draws == values.floor() + 1)).all()
    error = draws.std(0) / 2000**0.5
    noisy = error > 0
    assert float(((draws.mean(0) - values)[noisy] / error[noisy]).abs().max()) < 4.5
    torch.testing.assert_close(draws.mean(0)[~noisy], values[~noisy], atol=1e-3, rtol=0)


def test_without_noise_it_is_the_nearest() -> None:
    values = torch.tensor([-1.5, -0.51, -0.5, 0.0, 0.49, 0.5, 7.0])
    assert whole(values, None).tolist() == [-1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 7.0]


def test_equal_keys_draw_alike_and_leave_the_scripts_stream_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (noise(torch.zeros(50), *key) for key in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
