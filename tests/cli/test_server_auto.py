"""Row 84 (Dolphin): from a bad number of servers a live run comes within 10 % of the best static one.

What servers cost is slept by the script, by the number that its plan has by now: steps of a network that servers share,
and of servers that share a processor. So the best number is known, also on a machine that is busy with other things.
"""

from pathlib import Path

import pytest
from forked import command, soon
from test_scale_command import SCRIPT, finish, members, notice

from shoal.core.events import ChoiceMade
from shoal.core.record import launcher_file
from shoal.watch.tail import JournalTail

pytestmark = pytest.mark.usefixtures("tidy")

WAIT = 300.0
SENDING, EACH = 0.2, 0.02
"""Seconds of a step for one server, shared by all of them, and for each."""
BAD = 8


def step_seconds(servers: int) -> float:
    return SENDING / servers + EACH * servers


def choices(folder: Path) -> list[ChoiceMade]:
    events = JournalTail(launcher_file(folder / "runs" / "one")).read()
    return [event for event in events if isinstance(event, ChoiceMade)]


@pytest.mark.soak("clock")
@pytest.mark.timeout(600)
def test_from_a_bad_number_of_servers_to_near_the_best_static_one(tmp_path: Path) -> None:
    best = min(map(step_seconds, range(1, 17)))
    assert step_seconds(BAD) > 1.4 * best
    slept = f"k = run.plan.servers.servers if run.plan.servers else 10; time.sleep({SENDING} / k + {EACH} * k)"
    assert "time.sleep(0.003)" in SCRIPT
    (tmp_path / "script.py").write_text(SCRIPT.replace("time.sleep(0.003)", slept))
    running = command(tmp_path, "run", "--name", "one", "-w", "2", "--plan", f"server(auto, now={BAD})", "script.py")
    assert soon(WAIT, lambda: members(tmp_path) == [0, 1])
    assert soon(WAIT, lambda: bool(choices(tmp_path)))
    (chosen,) = choices(tmp_path)
    assert "samples/s by servers are" in chosen.reason
    assert soon(WAIT, lambda: (found := notice(tmp_path)) is not None and found.plan == chosen.codec)
    servers = int(chosen.codec.partition("now=")[2].partition(")")[0])
    assert step_seconds(servers) <= 1.1 * best, chosen.reason
    assert finish(tmp_path, running) == [0, 1]
