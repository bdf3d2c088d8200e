"""What papers promise of agreeing less often, on MNIST with four workers: rows 9, 19, 21, 36, 43 and 200 of
docs/systems.toml; row 40 with one worker four times slower.

Two epochs of 250 steps. The end of an epoch ends a round, so rounds of 16 steps are 32, not 31.25.
"""

from pathlib import Path

import pytest
from equal_samples import DATA, HERE, accuracy, trained
from forked import command

from shoal.lab.needs import missing
from shoal.watch.record import RunRecord
from shoal.watch.worker import read_workers

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
pytestmark = [pytest.mark.soak("mnist"), pytest.mark.timeout(1100)]
SAMPLES, WORKERS, POINT = 8000, 4, 0.01


def reached(plan: str, *more: float, seeds: int = 1) -> float:
    return accuracy(plan, WORKERS, SAMPLES, *more, seeds=seeds)


def sent(plan: str) -> float:
    return float(trained("mnist", plan, WORKERS, SAMPLES)["bytes_sent"])


def test_parameter_averaging_every_16_steps_a_16th_of_the_bytes_within_a_point() -> None:
    assert sent("bsp") / sent("local(16)") == pytest.approx(500 / 32, rel=0.01)
    assert reached("local(16)") >= reached("bsp") - POINT


def test_int8_quarters_the_bytes_of_rounds_within_a_point() -> None:
    assert sent("local(16)") / sent("local(16), int8") > 3.9
    assert reached("local(16), int8") >= reached("bsp") - POINT


def test_nexus_rounds_as_long_as_the_network_asks_for_within_a_point() -> None:
    """Row 19. What a host with several workers sends is in tests/cli/test_join_machines.py."""
    assert reached("nexus") >= reached("bsp") - POINT


def test_bmuf_every_32_steps_reaches_sgd_and_plain_averaging_is_worse() -> None:
    """Row 43, the means of three seeds, at a learning rate that leaves room: the block momentum of four workers makes
    steps four times as long."""
    bmuf = reached("local(32, bmuf)", 0.02, 0.0, seeds=3)
    assert bmuf >= reached("bsp", 0.02, 0.0, seeds=3)
    assert reached("local(32)", 0.02, 0.0, seeds=3) < bmuf - POINT


def test_butterfly_mixing_within_a_point_of_all_reduce() -> None:
    assert reached("butterfly", 0.1, 0.0) >= reached("bsp", 0.1, 0.0) - POINT


def test_absp_with_a_slow_worker_within_a_point_of_bsp() -> None:
    """The time of an epoch is in tests/data/allocate/test_leased.py, on a clock that nothing disturbs."""
    found = trained("mnist", "a-bsp", WORKERS, SAMPLES, 0.1, 0.0, 0.01)
    assert found["metrics"]["accuracy"] >= reached("bsp", 0.1, 0.0) - POINT


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_dogwild_with_a_tenth_of_all_datagrams_lost_within_a_point(tmp_path: Path) -> None:
    """Noel & Osindero 2014. The changes of four workers add up, so each takes a quarter of the learning rate. A frame
    crosses two links."""
    words = ["run", "--lab", "4 hosts, 1gbit, 5.2%", "--plan", "dogwild", "--checkpoint", "off", "--name", "run"]
    script = [str(HERE / "mnist_sgd.py"), str(DATA / "mnist"), str(SAMPLES), "0.025", "0"]
    done = command(tmp_path, *words, "--json", *script).wait(500)
    assert done.code == 0, done.err
    for worker in read_workers(RunRecord.open(tmp_path / "runs" / "run")):
        told = worker.datagrams
        assert told is not None
        assert 0.07 < told.lost / (told.lost + told.received) < 0.14, told
        assert (told.refused, told.late) == (0, 0)
    assert done.json["metrics"]["accuracy"] >= reached("bsp", 0.1, 0.0) - POINT


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_sparknet_is_quicker_to_an_accuracy_than_every_step_over_links_of_100_ms(tmp_path: Path) -> None:
    """Moritz et al. 2016: local steps tolerate latency. 50 ms to the switch and 50 ms from it; in turns in one lab."""
    words = ["bench", str(DIGITS), "--lab", "4 hosts, 100mbit, 50ms", "--plans", "sparknet; bsp", "--repeats", "3"]
    words += ["--one-seed", "--until", "accuracy>=0.9", "--out", str(tmp_path / "bench"), "--json"]
    done = command(tmp_path, *words, "--", "--epochs", "30").wait(1000)
    assert done.code == 0, done.err
    sparknet, bsp = (row["goal_seconds"]["median"] for row in done.json["rows"])
    assert sparknet < bsp, (sparknet, bsp)
