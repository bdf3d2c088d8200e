"""Every exchange, on every engine, passes the conformance case."""

import pytest
from by_links import linked_by_files, linked_by_keys
from in_short import in_short

import shoal.groups.mpi
import shoal.groups.process_group  # noqa: F401
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.plan.plan import Plan
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.testing import ExchangeCase
from shoal.train.build import EngineChooser, build_exchange


def test_every_transport_has_a_case() -> None:
    """The three below; under mpirun, tests/groups/mpi_cases.py. A new kind of group needs its own."""
    kinds = {kind for kind in subclasses(WorkerGroup) if kind.__module__.startswith("shoal.groups.")}
    assert {kind.__name__ for kind in kinds} == {
        "SingleWorkerGroup",  # which has nobody to send to
        *("SharedGroup", "TorchGroup", "LinkedGroup", "MpiGroup"),
    }


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__())) - {WorkerGroup}


class TestAllReduceInMemory(ExchangeCase):
    def make(self, group, directory):
        assert isinstance(group, SharedGroup)
        exchange = build_exchange(Plan(), group, EngineChooser(group, directory))
        assert isinstance(exchange, AllReduceExchange)
        return exchange


@in_short
class TestAllReduceByGloo(ExchangeCase):
    sizes = (2, 3)

    @pytest.fixture(autouse=True)
    def _engine(self, monkeypatch):
        monkeypatch.setenv("SHOAL_ENGINE", "collective")

    def make(self, group, directory):
        return build_exchange(Plan(), group, EngineChooser(group, directory))


class TestAllReduceByLinks(ExchangeCase):
    """Over files of one host."""

    def make(self, group, directory):
        linked = linked_by_files(group, directory)
        assert isinstance(linked, LinkedGroup)
        return build_exchange(Plan(), linked, EngineChooser(linked, directory))


@in_short
@pytest.mark.parametrize("by", ["ring", "owners", "straight", "tree", "chain", "star", "butterfly"])
class TestAllReduceByOneWay(ExchangeCase):
    """All buckets the same way, as `allreduce(ring)` says."""

    sizes = (3,)

    @pytest.fixture(autouse=True)
    def _by(self, by):
        self.by = by

    def make(self, group, directory):
        linked = linked_by_files(group, directory)
        return build_exchange(Plan.parse(f"allreduce({self.by})"), linked, EngineChooser(linked, directory, self.by))


@in_short
class TestAllReduceByKeys(ExchangeCase):
    """Over TCP, under keys."""

    sizes = (2, 3)

    def make(self, group, directory):
        linked = linked_by_keys(group)
        return build_exchange(Plan(), linked, EngineChooser(linked, directory))
