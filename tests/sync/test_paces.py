"""Every pace passes the conformance case."""

from shoal.plan.plan import Plan
from shoal.sync.pace.every import EveryPace
from shoal.testing import PaceCase
from shoal.train.build import Engines, build_exchange


class TestEvery(PaceCase):
    def make(self, group, directory, names, parameters):
        return EveryPace(build_exchange(Plan(), group, Engines(group, directory)), names, parameters)
