"""Every pace passes the conformance case."""

from by_links import linked_by_files

from shoal.plan.plan import Plan
from shoal.sync.pace.every import EveryPace
from shoal.sync.pace.needed import NeededPace
from shoal.sync.pace.ordering import OrderingPace
from shoal.testing import PaceCase
from shoal.train.build import EngineChooser, build_exchange


class TestEvery(PaceCase):
    def make(self, group, directory, names, parameters):
        return EveryPace(build_exchange(Plan(), group, EngineChooser(group, directory)), names, parameters)


class TestNeeded(PaceCase):
    """Whoever looks at a gradient waits for it, so to a script it is as any other."""

    def make(self, group, directory, names, parameters):
        group = linked_by_files(group, directory)
        return NeededPace(build_exchange(Plan(), group, EngineChooser(group, directory)), names, parameters)


class TestOrdering(PaceCase):
    """In turns as either."""

    def make(self, group, directory, names, parameters):
        group = linked_by_files(group, directory)
        return OrderingPace(build_exchange(Plan(), group, EngineChooser(group, directory)), names, parameters)
