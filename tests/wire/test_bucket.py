"""Buckets: layout, marks, and what is left in the memory between exchanges."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.bucket import GradientBucket, lay_out

shapes = st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=12)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def bucket_of(tensors):
    (plan,) = lay_out(tensors, 1 << 30)
    return GradientBucket(plan, torch.full((plan.space.numel,), 7.0))


@given(shapes, dtypes, st.integers(1, 400))
def test_every_tensor_has_one_place_and_places_do_not_overlap(found, dtype, capacity):
    tensors = [torch.zeros(shape, dtype=dtype) for shape in found]
    plans = lay_out(tensors, capacity)
    assert sorted(slot.index for plan in plans for slot in plan.slots) == list(range(len(tensors)))
    for plan in plans:
        ends = [slot.offset + slot.shape.numel() for slot in plan.slots]
        assert [slot.offset for slot in plan.slots] == [0, *ends[:-1]]
        assert plan.payload == ends[-1] == plan.space.numel - len(plan.slots)


def test_the_last_layers_come_first_and_kinds_do_not_mix():
    tensors = [torch.zeros(4), torch.zeros(4, dtype=torch.float64), torch.zeros(4)]
    assert [[slot.index for slot in plan.slots] for plan in lay_out(tensors)] == [[2, 0], [1]]


def test_a_bucket_closes_when_it_is_full():
    assert [len(plan.slots) for plan in lay_out([torch.zeros(10)] * 5, capacity=80)] == [2, 2, 1]


def test_put_scales_and_marks():
    bucket = bucket_of([torch.zeros(2), torch.zeros(3)])
    view = bucket.put(1, torch.ones(2), 0.5)
    assert bucket.missing == 1
    bucket.seal(0.5)
    assert view.tolist() == [0.5, 0.5]
    assert bucket.flat.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0.5]


def test_a_gradient_that_lives_in_its_place_is_scaled_there():
    bucket = bucket_of([torch.zeros(2)])
    view = bucket.put(0, torch.tensor([2.0, 4.0]), 1.0)
    bucket.reset()
    assert bucket.put(0, view, 0.25).tolist() == [0.5, 1.0]


def test_what_is_missing_is_blank_even_after_somebody_else_had_it():
    bucket = bucket_of([torch.zeros(2)])
    bucket.seal(0.5)
    assert bucket.flat.tolist() == [0, 0, 0]
    bucket.flat.copy_(torch.tensor([3.0, 3.0, 0.5]))  # what an exchange left: another worker had it
    assert bucket.had(0) == 0.5
    bucket.reset()
    bucket.seal(0.5)
    assert bucket.flat.tolist() == [0, 0, 0]
