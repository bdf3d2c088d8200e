"""Every exchange, on every engine, passes the conformance case."""

import pytest

from shoal.plan.plan import Plan
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.testing import ExchangeCase
from shoal.train.build import Engines, build_exchange


class TestAllReduceInMemory(ExchangeCase):
    def make(self, group, directory):
        exchange = build_exchange(Plan(), group, Engines(group, directory))
        assert isinstance(exchange, AllReduceExchange)
        return exchange


class TestAllReduceByGloo(ExchangeCase):
    sizes = (2, 3)

    @pytest.fixture(autouse=True)
    def _engine(self, monkeypatch):
        monkeypatch.setenv("SHOAL_ENGINE", "collective")

    def make(self, group, directory):
        return build_exchange(Plan(), group, Engines(group, directory))
