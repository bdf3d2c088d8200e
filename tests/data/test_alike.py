"""Reading an iterable alike on every worker, without touching the script's generators."""

import random

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler

from shoal.data.alike import CommonReader, read_sampler, seed_generators


class Dice:
    """Draws anew for each item, from two global generators."""

    def __iter__(self):
        for _ in range(10):
            yield random.random(), torch.rand(()).item()


def test_readers_agree_whatever_is_drawn_in_between():
    one, two = CommonReader(Dice(), 3), CommonReader(Dice(), 3)
    first = [one.read(4), one.read(4), one.read(4)]
    second = []
    for _ in range(3):
        random.random()
        torch.rand(2)
        second.append(two.read(4))
    assert first == second
    assert [len(items) for items in first] == [4, 4, 2]


def test_script_state_is_put_back():
    before = torch.get_rng_state(), random.getstate()
    CommonReader(Dice(), 3).read(10)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_generators_inside_are_seeded_alike():
    samplers = [SubsetRandomSampler(range(20), generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    first, second = (read_sampler(sampler, 5)(20) for sampler in samplers)
    assert first == second
    assert first != read_sampler(samplers[0], 6)(20)


def test_default_generator_in_a_sampler_is_put_back():
    before = torch.get_rng_state()
    read_sampler(RandomSampler(range(9), replacement=True, generator=torch.default_generator), 1)(9)
    assert torch.equal(before, torch.get_rng_state())


def test_torch_samplers_are_read_ahead_in_order():
    read = read_sampler(RandomSampler(range(10_000), num_samples=9_000), 1)
    found = [index for _ in range(3) for index in read(4_000)]
    assert len(found) == len(set(found)) == 9_000
    assert read(1) == []


def test_a_sampler_of_the_user_is_not_read_ahead():
    seen = []
    read = read_sampler((seen.append(n) or n for n in range(10)), 0)
    assert read(3) == seen == [0, 1, 2]


def test_generators_within_samplers_are_found_and_circles_are_not_followed():
    inner = SubsetRandomSampler(range(20), generator=torch.Generator())
    batches = BatchSampler(inner, 2, False)
    inner.sampler = batches
    seed_generators(batches, 5)
    first = list(batches)
    seed_generators(batches, 5)
    assert list(batches) == first
