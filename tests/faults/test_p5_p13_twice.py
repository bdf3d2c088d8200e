"""P5 somebody dies while a newcomer is given the state; P13 the coordinator dies at every kind of entry it writes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forked, soon
from scripts import given_up
from test_p1_p7_members import WAIT, disturbed, doing, kill, pid

from shoal.cluster.coordinator import wal
from shoal.cluster.notice import live
from shoal.cluster.transfer import ByMemory

pytestmark = pytest.mark.timeout(300)


def once(folder: Path, name: str) -> bool:
    """True for the first process that asks."""
    try:
        (folder / f"once-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_coordinator() -> None:
    (notice,) = live()
    assert notice.coordinator is not None
    os.kill(notice.coordinator.pid, signal.SIGKILL)


def donor_dies_before(folder: Path) -> None:
    give = ByMemory.give

    def killed(*args: object) -> None:
        if once(folder, "donor"):
            die()
        give(*args)  # type: ignore[arg-type]

    ByMemory.give = killed  # type: ignore[method-assign, assignment]


def donor_dies_after(folder: Path) -> None:
    give = ByMemory.give

    def killed(*args: object) -> None:
        give(*args)  # type: ignore[arg-type]
        if once(folder, "donor"):
            die()

    ByMemory.give = killed  # type: ignore[method-assign, assignment]


def joiner_dies(folder: Path) -> None:
    receive = ByMemory.take

    def killed(*args: object) -> object:
        found = receive(*args)  # type: ignore[arg-type]
        if found is not None and once(folder, "joiner"):
            die()
        return found

    ByMemory.take = killed  # type: ignore[method-assign, assignment]


def coordinator_dies(folder: Path) -> None:
    give = ByMemory.give

    def killed(*args: object) -> None:
        if once(folder, "coordinator"):
            kill_coordinator()
        give(*args)  # type: ignore[arg-type]

    ByMemory.give = killed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    "death",
    [
        donor_dies_before,
        pytest.param(joiner_dies, marks=pytest.mark.soak),
        pytest.param(coordinator_dies, marks=pytest.mark.soak),
        pytest.param(donor_dies_after, marks=pytest.mark.soak),
    ],
    ids=lambda death: death.__name__.replace("_", " "),
)
def test_p5_a_second_loss_while_the_first_is_made_good(tmp_path: Path, death: Callable[[Path], None]) -> None:
    def act(_running: Forked) -> None:
        os.kill(pid(tmp_path, 2), signal.SIGKILL)
        assert soon(WAIT, lambda: list(tmp_path.glob("once-*"))), "the second fault never came"
        assert soon(WAIT, whole), doing()

    def whole() -> bool:
        members = doing()
        assert members, "the run has ended"
        starts = 4 if death is coordinator_dies else 5
        return sum(member.starts for member in members) == starts and all(m.rank is not None for m in members)

    err = disturbed(tmp_path, act, inject=lambda: death(tmp_path))
    assert err.count("was lost (SIGKILL)") == (1 if death is coordinator_dies else 2), err
    assert "quarantined" not in err


def deadly_log(folder: Path) -> None:
    """The coordinator dies in the middle of the first entry of each kind, and right after the second."""
    append = wal.Wal.append

    def killed(self: wal.Wal, entry: wal.Written) -> None:
        kind = type(entry).__name__
        if once(folder, f"torn-{kind}"):
            os.write(self._file, b"\x20\0\0\0\1\2\3")
            die()
        append(self, entry)
        if once(folder, f"after-{kind}"):
            die()

    wal.Wal.append = killed  # type: ignore[method-assign]


def test_p13_the_coordinator_dies_at_every_kind_of_entry(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), inject=lambda: deadly_log(tmp_path))
    wanted = {f"once-{place}-{kind}" for place in ("torn", "after") for kind in ("Proposed", "Installed", "Lost")}
    assert {path.name for path in tmp_path.glob("once-*")} == wanted
    assert err.count("was lost") == 1, err
    assert given_up(tmp_path) == ["w1.1000000"]


def deadly_entry(folder: Path, number: int) -> None:
    """The coordinator dies at the entry of this number, counted over all its lives: before, inside and after it."""
    append = wal.Wal.append

    def killed(self: wal.Wal, entry: wal.Written) -> None:
        here = len(wal.read(self.path)[0]) == number
        if here and once(folder, "before"):
            die()
        if here and once(folder, "torn"):
            os.write(self._file, b"\x20\0\0\0\1\2\3")
            die()
        append(self, entry)
        if here and once(folder, "after"):
            die()

    wal.Wal.append = killed  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(7))  # of more a run is not sure: the rest is written while it ends
def test_p13_the_coordinator_dies_at_the_nth_entry(tmp_path: Path, number: int) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), inject=lambda: deadly_entry(tmp_path, number))
    assert len(list(tmp_path.glob("once-*"))) == 3
    assert err.count("was lost") == 1, err
    assert given_up(tmp_path) == ["w1.1000000"]
