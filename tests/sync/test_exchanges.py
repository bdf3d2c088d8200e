"""Every exchange, on every engine, passes the conformance case."""

import pytest
from by_links import linked_by_files, linked_by_keys
from in_short import in_short

from shoal.plan.plan import Plan
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.testing import ExchangeCase
from shoal.train.build import EngineChooser, build_exchange


class TestAllReduceInMemory(ExchangeCase):
    def make(self, group, directory):
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
