"""What tests of live catch-up share."""

from typing import Any

import pytest
from catchup_sides import Bare, Side


@pytest.fixture
def sides() -> Any:
    """Makes sides whose optimizers tell nobody but the test's sender."""
    return lambda size=512, seed=1: Side(size, seed, Bare)
