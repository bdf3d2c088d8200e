"""Row 84 (Dolphin): from a bad number of servers a live run comes within 10 % of the best static one."""

import statistics
import time
from pathlib import Path

import pytest
from forked import command, shoal, soon
from test_scale_command import SCRIPT, finish, members, notice

from shoal.core.events import ChoiceMade
from shoal.core.record import launcher_file
from shoal.watch.tail import JournalTail

pytestmark = pytest.mark.usefixtures("tidy")

WAIT, WINDOW = 240.0, 4.0
TURNS = 3


def start(folder: Path, plan: str) -> object:
    (folder / "script.py").write_text(SCRIPT)
    return command(folder, "run", "--name", "one", "-w", "2", "--plan", plan, "script.py")


def choices(folder: Path) -> list[ChoiceMade]:
    return [
        event for event in JournalTail(launcher_file(folder / "runs" / "one")).read() if isinstance(event, ChoiceMade)
    ]


def rate(folder: Path) -> float:
    """Samples/s of all workers, now."""
    found = notice(folder)
    board = found.read_board() if found is not None else None
    assert board is not None
    began, before = time.monotonic(), sum(int(board.read(slot)["samples"]) for slot in (0, 1))
    time.sleep(WINDOW)
    return (sum(int(board.read(slot)["samples"]) for slot in (0, 1)) - before) / (time.monotonic() - began)


@pytest.mark.soak("clock")
@pytest.mark.timeout(900)
def test_from_a_bad_number_of_servers_to_near_the_best_static_one(tmp_path: Path) -> None:
    """All numbers are measured in turns in the same run, so that a busy machine is busy for all of them."""
    running = start(tmp_path, "server(auto, now=8)")
    assert soon(WAIT, lambda: members(tmp_path) == [0, 1])
    assert soon(WAIT, lambda: bool(choices(tmp_path)))
    (chosen,) = choices(tmp_path)
    assert "samples/s by servers are" in chosen.reason
    found = notice(tmp_path)
    assert soon(WAIT, lambda: (found := notice(tmp_path)) is not None and found.plan == chosen.codec), found
    best = int(chosen.codec.partition("now=")[2].partition(")")[0])
    rates: dict[int, list[float]] = {}
    for _ in range(TURNS):
        for servers in dict.fromkeys((best, 1, 2, 4, 8)):
            assert shoal(tmp_path, "switch", "one", f"server(shards={servers})").code == 0
            rates.setdefault(servers, []).append(rate(tmp_path))
    medians = {servers: statistics.median(each) for servers, each in rates.items()}
    assert medians[best] >= 0.9 * max(medians.values()), f"{chosen.reason}; static: {medians}"
    assert finish(tmp_path, running) == [0, 1]  # type: ignore[arg-type]
