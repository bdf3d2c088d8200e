"""Which loaders are dealt how, and which are refused."""

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.distributed import DistributedSampler

from shoal.core.errors import UsageError
from shoal.data.source.base import WorkerPlace
from shoal.data.source.batches import IterableSource
from shoal.data.source.choose import choose
from shoal.data.source.mapped import MapDatasetSource
from shoal.data.source.streamed import StreamSource

HERE = WorkerPlace(0, 2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class Doubling(DataLoader):
    def __iter__(self):
        return (batch * 2 for batch in super().__iter__())


def test_each_kind_has_its_source():
    assert isinstance(choose(DataLoader(range(4)), HERE), MapDatasetSource)
    assert isinstance(choose(DataLoader(Stream()), HERE), StreamSource)
    assert isinstance(choose([1, 2], HERE), IterableSource)
    assert isinstance(choose(Doubling(range(4)), HERE), IterableSource)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_distributed_sampler_is_refused(wrapped):
    sampler = DistributedSampler(range(4), num_replicas=2, rank=0)
    how = {"batch_sampler": BatchSampler(sampler, 2, False)} if wrapped else {"sampler": sampler}
    with pytest.raises(UsageError, match=r"already deals samples \(DistributedSampler\)"):
        choose(DataLoader(range(4), **how), HERE)


def test_a_data_pipe_is_refused():
    with pytest.raises(UsageError, match="data pipe"):
        choose(DataLoader(IterableWrapper([1, 2])), HERE)


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(UsageError, match="type int cannot be iterated"):
        choose(5, HERE)
