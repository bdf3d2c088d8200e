"""What papers promise of their codecs, on MNIST: rows 49 to 55 of docs/systems.toml.

Accuracies are within a point of what no codec gives at equal samples. Quicker forms of the same are in tests/wire.
"""

import pytest
from equal_samples import accuracy, fewer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1100)]
SAMPLES = 8000
POINT = 0.01


def reached(plan: str, *more: float) -> float:
    return accuracy(plan, 2, SAMPLES, *more)


def test_seide_one_bit_a_twenty_eighth_of_the_bytes_and_worse_without_feedback() -> None:
    assert fewer("1bit-sgd", 2, SAMPLES) >= 28
    assert reached("1bit-sgd") >= reached("bsp") - POINT
    assert reached("onebit, feedback(off)") < reached("1bit-sgd") - POINT


def test_qsgd_four_bits_are_enough() -> None:
    assert reached("qsgd") >= reached("bsp") - POINT


def test_terngrad_three_levels_are_enough_and_clipping_helps() -> None:
    assert reached("terngrad") >= reached("bsp") - POINT
    assert reached("terngrad") > reached("ternary(0)")


def test_mxnet_two_bits_are_enough() -> None:
    assert reached("2bit-mxnet") >= reached("bsp") - POINT


def test_dgc_a_thousandth_is_enough() -> None:
    """The same momentum, in the optimizer or in the codec."""
    plan, samples, lr = "dgc(0.001, warmup=60)", 20_000, 0.01
    assert fewer(plan, 2, samples, lr, 0.0) >= 100
    assert accuracy(plan, 2, samples, lr, 0.0) >= accuracy("bsp", 2, samples, lr, 0.9) - POINT


def test_dgc_without_momentum_correction_it_is_worse_where_steps_are_large() -> None:
    lr = 0.02
    plain = reached("dgc(0.001, momentum=0, warmup=20)", lr, 0.9)
    assert plain < reached("dgc(0.001, warmup=20)", lr, 0.0) - POINT


def test_esgd_less_is_worse_gracefully() -> None:
    """Dropping seven eighths costs less than a point; dropping 99 of 100 less than three."""
    found = [reached(f"esgd({ratio})") for ratio in (0.5, 0.25, 0.125, 0.01)]
    assert found == sorted(found, reverse=True)
    assert found[2] >= reached("bsp") - POINT
    assert found[3] >= reached("bsp") - 3 * POINT
