"""Labs for the tests; they are skipped where a lab cannot run, with what is missing."""

from collections.abc import Iterator

import pytest

from shoal.cluster.lab.lab import Lab
from shoal.cluster.lab.link import Link
from shoal.cluster.lab.needs import missing
from shoal.cluster.lab.spec import Spec


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips the test if this machine cannot run a lab."""
    if found := missing():
        pytest.skip(f"a lab cannot run here: it needs {', and '.join(found)}")


@pytest.fixture(scope="module")
def four(possible: None) -> Iterator[Lab]:
    """A lab of four hosts for all tests of a file."""
    with Lab(Spec.parse("4 hosts, seed 5")) as lab:
        yield lab


@pytest.fixture
def lab(four: Lab) -> Lab:
    """The file's lab, as it was in the beginning."""
    four.heal()
    four.restore(*range(4))
    for host in range(4):
        four.set_link(host, Link())
        four.noise(host, 0.0, 0.0)
    return four
