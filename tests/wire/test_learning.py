"""What the papers claim, on a small network: who learns as if there were no codec, and who does not."""

import pytest
from learning import learn


def plain() -> float:
    return learn("allreduce")


@pytest.mark.parametrize(
    "plan",
    ["fp16", "bf16", "int8", "fixed", "fixed(bits=8, frac=6)", "1bit-sgd", "twobit(0.01)", "terngrad", "qsgd",
     "topk(0.02)", "topk(0.02), int8", "randomk(0.1)", "threshold(0.01)", "esgd", "powersgd"],
)  # fmt: skip
def test_learns_as_without(plan):
    assert learn(plan) < 1.03 * plain()


@pytest.mark.parametrize(("plan", "worse"), [("onebit", 1.02), ("topk(0.02)", 1.08), ("twobit(0.01)", 1.03),
                                              ("lowrank(2)", 1.02)])  # fmt: skip
def test_without_feedback_it_is_worse(plan, worse):
    """Seide et al., Stich et al., Karimireddy et al., Vogels et al."""
    assert learn(f"{plan}, feedback(off)") > worse * learn(plan)


def test_gupta_rounding_to_the_nearest_is_worse():
    assert learn("fixed(bits=8, frac=4, rounding=nearest)") > 1.05 * learn("fixed(bits=8, frac=4)")


def test_lin_momentum_correction_helps_where_steps_are_large():
    """Most of a gradient waits; momentum outside is then applied to what is out of date."""
    corrected = learn("dgc(0.004)", steps=400, lr=0.2)
    assert corrected < 0.85 * learn("dgc(0.004, momentum=0)", steps=400, lr=0.2, momentum=0.9)


def test_tao_and_li_less_is_worse_but_not_much():
    """eSGD: the fewer coordinates travel, the worse, gracefully."""
    losses = [learn(f"esgd({ratio})") for ratio in (0.5, 0.125, 0.01)]
    assert losses[0] < losses[1] < losses[2] < 1.3 * plain()
