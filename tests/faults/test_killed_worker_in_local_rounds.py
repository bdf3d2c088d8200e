"""P1 under `local(…)`: a worker is killed in the middle of a round. It loses its steps since the round, nobody else."""

from pathlib import Path

import pytest
from test_killed_or_frozen_worker import disturbed, kill

pytestmark = pytest.mark.timeout(300)


def test_p1_a_worker_is_killed_in_a_round_and_replaced(tmp_path: Path) -> None:
    """Its samples since the last round are dealt again; the newcomer enters at the end of one, with the outer state."""
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", "local(4, diloco)")
    assert "worker 1 was lost (SIGKILL)" in err
