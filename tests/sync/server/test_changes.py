"""Pulls that bring only what has changed: the values of the server, from any version a member may hold."""

import numpy as np
import pytest

from shoal.core.errors import PayloadError
from shoal.sync.server.changes import ElementChanges, take_changes, write_changes

SIZE = 200


@pytest.mark.parametrize("seed", range(20))
def test_values_of_any_version_become_the_newest(seed: int) -> None:
    chance = np.random.default_rng(seed)
    values, changes = np.zeros(SIZE, np.float32), ElementChanges(SIZE)
    history = [values.copy()]
    for version in range(1, 15):
        update = chance.standard_normal(SIZE).astype(np.float32)
        # one in five is dense: everything before is then sent whole
        update[chance.random(SIZE) < (0.1 if chance.random() < 0.2 else 0.97)] = 0
        values += update
        changes.note(update, version)
        history.append(values.copy())
        for held, before in enumerate(history):
            places = changes.since(held)
            data = write_changes(values, places)
            if places is None or data is None:
                continue
            assert data.nbytes < values.nbytes
            take_changes(memoryview(data), len(places), mine := before.copy())
            assert np.array_equal(mine, values)
    assert changes.since(14) is None or len(changes.since(14)) == 0


def test_nothing_is_known_of_versions_before_the_first() -> None:
    """A server that takes over from another."""
    changes = ElementChanges(SIZE, version=7)
    assert changes.since(6) is None
    assert len(changes.since(7)) == 0


@pytest.mark.parametrize("spoil", ["cut", "more", "places"])
def test_changes_that_nobody_wrote_are_refused(spoil: str) -> None:
    values = np.arange(SIZE, dtype=np.float32)
    data = bytearray(write_changes(values, np.array([3, 50, 199])).tobytes())
    count = 4 if spoil == "more" else 3
    if spoil == "cut":
        del data[-1]
    if spoil == "places":
        data[-1] = data[-2] = 0xFF
    with pytest.raises(PayloadError):
        take_changes(memoryview(data), count, values)
