"""Sums at a server: complete when all members have sent theirs, in the order of the members, in one view."""

from itertools import permutations

import pytest
import torch

from shoal.core.errors import PayloadError
from shoal.sync.server.sum_rounds import SumKey, SumRounds

MEMBERS = ["w0.0", "w1.0", "w2.0"]
KEY = SumKey(1, 0, 0, 1)


def parts(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {member: torch.tensor([1e8, 0.1]).mul(10**place).to(dtype) for place, member in enumerate(MEMBERS)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_bits_do_not_depend_on_who_comes_first(dtype: torch.dtype) -> None:
    sums = []
    for order in permutations(MEMBERS):
        rounds, own = SumRounds(), parts(dtype)
        found = [rounds.add(member, KEY, MEMBERS, own[member]) for member in order]
        assert found[:2] == [None, None]
        sums.append(found[2])
        assert rounds.open_count == 0
    assert all(torch.equal(total, sums[0]) for total in sums)


def test_a_newer_view_drops_what_is_open_and_counts_alone() -> None:
    rounds, own = SumRounds(), parts()
    assert rounds.add("w0.0", KEY, MEMBERS, own["w0.0"]) is None
    new, stay = SumKey(2, 0, 0, 1), MEMBERS[:2]
    assert rounds.add("w1.0", new, stay, own["w1.0"]) is None
    assert rounds.open_count == 1
    assert rounds.add("w2.0", KEY, MEMBERS, own["w2.0"]) is None, "the lost one's word comes too late"
    total = rounds.add("w0.0", new, stay, own["w0.0"])
    assert torch.equal(total, own["w0.0"] + own["w1.0"])


def test_what_no_honest_member_sends_is_refused() -> None:
    rounds = SumRounds()
    with pytest.raises(
        PayloadError, match=r"w9\.0 sends a tensor for a sum of w0\.0, w1\.0, w2\.0; it is none of them"
    ):
        rounds.add("w9.0", KEY, MEMBERS, torch.zeros(2))
    rounds.add("w0.0", KEY, MEMBERS, torch.zeros(2))
    with pytest.raises(PayloadError, match="must train the same model"):
        rounds.add("w1.0", KEY, MEMBERS, torch.zeros(3))
