"""Conformance cases in short: `make test` runs the whole of them on two engines, `make soak` on all."""

import functools
from typing import Any

import pytest

from shoal.testing import ExchangeCase

DEPENDS_ON_THE_ENGINE = {"test_mean_float32", "test_many_rounds_never_mix", "test_a_lost_worker_ends_the_wait"}


def in_short(case: type[ExchangeCase]) -> type[ExchangeCase]:
    """`make test` runs what depends on the engine; the rest is of the exchange, and two engines show it."""
    for name in [name for name in dir(case) if name.startswith("test_") and name not in DEPENDS_ON_THE_ENGINE]:
        setattr(case, name, pytest.mark.soak(_copied(getattr(case, name))))
    return case


def _copied(test: Any) -> Any:
    """A mark stays with the function: the base class must keep its own."""

    @functools.wraps(test)
    def again(self: Any) -> Any:
        return test(self)

    return again
