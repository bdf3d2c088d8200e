"""Labs for the tests; they are skipped where a lab cannot run, with what is missing."""

from collections.abc import Iterator

import pytest

from shoal.lab.lab import NetworkLab
from shoal.lab.link import LabLink
from shoal.lab.load import parse_lab
from shoal.lab.needs import missing


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips the test if this machine cannot run a lab."""
    if found := missing():
        pytest.skip(f"a lab cannot run here: it needs {', and '.join(found)}")


@pytest.fixture(scope="module")
def four(possible: None) -> Iterator[NetworkLab]:
    """A lab of four hosts for all tests of a file."""
    with NetworkLab(parse_lab("4 hosts, seed 5")) as lab:
        yield lab


@pytest.fixture
def lab(four: NetworkLab) -> NetworkLab:
    """The file's lab, as it was in the beginning."""
    four.heal()
    four.restore(*range(4))
    for host in range(4):
        four.set_link(host, LabLink())
        four.noise(host, 0.0, 0.0)
    return four
