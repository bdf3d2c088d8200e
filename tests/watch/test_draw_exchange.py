"""What computing has hidden of the transfer, in one line."""

import msgspec
import pytest
from fake_runs import make_run, started, step

from shoal.sync.cost import ExchangeCost
from shoal.sync.lockstep.flight import BucketFlight
from shoal.watch.draw.exchange import hidden_line
from shoal.watch.worker import read_workers


def test_the_share_is_over_all_steps_and_workers(tmp_path) -> None:
    seen = [msgspec.structs.replace(step(n), transfer=0.4, exposed=exposed) for n, exposed in enumerate((0.1, 0.2))]
    workers = read_workers(make_run(tmp_path, [started(), *seen], [started(1), *seen[:1]]))
    line = hidden_line(workers)
    assert line is not None
    assert line.plain == "400 ms a step, 67% of it hidden behind computing"


def test_nothing_is_said_where_nothing_is_known(tmp_path) -> None:
    assert hidden_line(read_workers(make_run(tmp_path, [started(), step(0)]))) is None


def test_transfers_that_overlap_count_once() -> None:
    flight, spent = BucketFlight(10.0), ExchangeCost()
    for number, left in enumerate((10.0, 11.0, 15.0)):
        flight.left(number, left)
    flight.landed(0, 12.5, 13.0, 13.0)
    flight.landed(1, 13.0, 13.0, 12.0)
    flight.landed(2, 15.5, 16.5, 16.0)
    flight.tell(spent, [0, 1, 2])
    assert spent.transfer == pytest.approx(3.0 + 1.0)
    assert spent.exposed == pytest.approx(0.5 + 1.0)
    assert (spent.ready, spent.done) == ([0.0, 1.0, 5.0], [3.0, 3.0, 6.5])


def test_an_engine_that_does_not_tell_leaves_it_unknown() -> None:
    flight, spent = BucketFlight(10.0), ExchangeCost()
    flight.left(0, 10.0)
    flight.landed(0, 11.0, 12.0, None)
    flight.tell(spent, [0])
    assert (spent.transfer, spent.exposed) == (0.0, 0.0)
