"""What the script and the run see of a loader."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from shoal.core.errors import UsageError
from shoal.data.loader import ShardedLoader
from shoal.data.observer import NoObserver
from shoal.data.order import order


def loader(watch, size=2, rank=0, **how):
    return ShardedLoader(DataLoader(range(10), **how), rank=rank, size=size, seed=0, observer=watch)


@settings(deadline=None, max_examples=150)
@given(
    total=st.integers(1, 40),
    size=st.integers(1, 5),
    batch=st.integers(1, 4),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_exactly_once_in_the_same_order_for_any_number_of_workers(crew, total, size, batch, drop_last, shuffle):
    def make(batch_size):
        return lambda: DataLoader(range(total), batch_size, shuffle=shuffle, drop_last=drop_last)

    together = crew(make(batch), size)
    steps = together.steps()
    assert steps == crew(make(batch * size), 1).steps()
    expected = order(0, 0, 0, total) if shuffle else list(range(total))
    kept = total - total % (batch * size) if drop_last else total
    assert [sample for step in steps for sample in step] == expected[:kept]
    for ours, watch in zip(together.loaders, together.watches, strict=True):
        assert len(ours) == len(steps)
        assert watch.calls.count("ended") + watch.calls.count("short") == len(steps)


def test_remainder_is_dealt_evenly(crew):
    together = crew(lambda: DataLoader(range(19), 4), 3)
    assert together.run()[1] == [[4, 5, 6, 7], [15, 16]]
    assert together.watches[2].counts == [(4, 4, 4), (3, 2, 2)]


def test_observer_sees_the_whole_pass(watch):
    assert len(list(loader(watch, size=3, rank=1, batch_size=3))) == 1
    assert watch.calls == ["began", "ended", "began", "short", "began", "exhausted"]


def test_leaving_early_ends_the_pass(watch):
    for _ in loader(watch):
        break
    assert watch.calls == ["began", "ended", "exhausted"]


def test_an_error_in_the_script_ends_the_pass(watch):
    def script():
        for batch in loader(watch):
            raise ValueError(batch)

    with pytest.raises(ValueError):
        script()
    assert watch.calls == ["began", "ended", "exhausted"]


def test_an_error_in_the_dataset_ends_the_pass(watch):
    broken = ShardedLoader(DataLoader(range(3), 1, sampler=[9]), rank=0, size=1, seed=0, observer=watch)
    with pytest.raises(IndexError):
        list(broken)
    assert watch.calls == ["began", "exhausted"]


def test_epochs_and_turns_are_shuffled_anew_and_reproducible(crew):
    one, two = (crew(lambda: DataLoader(range(30), 5, shuffle=True), 2) for _ in range(2))
    first = [one.run(0), one.run(0), one.run(1)]
    assert first == [two.run(0), two.run(0), two.run(1)]
    assert len({str(found) for found in first}) == 3
    assert two.run(0) == first[0]


def test_passes_within_each_other_do_not_mix(watch):
    ours = loader(watch, size=1, shuffle=True)
    pairs = [(int(x), int(y)) for x, y in zip(ours, ours, strict=True)]
    assert [x for x, _ in pairs] == order(0, 0, 0, 10)
    assert [y for _, y in pairs] == order(0, 0, 1, 10)


def test_script_generators_are_left_alone():
    before = torch.get_rng_state()
    list(loader(NoObserver(), shuffle=True, batch_size=3))
    assert torch.equal(before, torch.get_rng_state())


def test_other_attributes_are_those_of_the_users_loader():
    data = DataLoader(range(10), 3, collate_fn=list)
    ours = ShardedLoader(data, rank=0, size=2, seed=0, observer=NoObserver())
    assert (ours.dataset, ours.batch_size, ours.collate_fn) == (range(10), 3, list)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ours.nothing
    assert len(copy.copy(ours)) == 2


def test_joining_twice_is_refused():
    with pytest.raises(UsageError, match="joined already"):
        ShardedLoader(loader(NoObserver()), rank=0, size=2, seed=0, observer=NoObserver())
