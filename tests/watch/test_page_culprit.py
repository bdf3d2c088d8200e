"""The line at the top names who cost the last minute, and what."""

import msgspec
from fake_runs import step

from shoal.watch.page.culprit import name_culprit
from shoal.watch.page.recent import StepSums, add_up, sums_of
from shoal.watch.worker import WorkerRecord


def steps(compute: float, wait: float, count: int = 10, **more: float) -> StepSums:
    each = [msgspec.structs.replace(step(n, compute + wait, wait=wait), **more) for n in range(count)]
    return add_up([sums_of(one) for one in each])


def record(rank: int, host: str = "a", **links: tuple[float, float]) -> WorkerRecord:
    return WorkerRecord(rank=rank, host=host, links={name[1:]: link for name, link in links.items()})


def test_a_worker_that_computes_longer_is_named() -> None:
    words = name_culprit({0: steps(0.5, 0.5), 1: steps(1.0, 0.0), 2: steps(0.5, 0.5)}, [])
    assert words == "worker 1 computes 100% longer than the others: it cost 50% of the last minute"


def test_a_worker_whose_data_come_late_is_named() -> None:
    slow = steps(1.0, 0.0, load=0.5, forward_backward=0.5)
    words = name_culprit({0: steps(0.5, 0.5), 1: slow}, [])
    assert words == "worker 1 waits for its data while the others wait: it cost 50% of the last minute"


def test_the_slowest_link_is_named_with_its_host() -> None:
    recent = {rank: steps(0.6, 0.4, exposed=0.4, transfer=0.5) for rank in range(3)}
    records = [record(0, "a", _1=(1e7, 0.02), _2=(5e7, 0.01)), record(1, "b"), record(2, "c")]
    assert name_culprit(recent, records) == (
        "waiting for transfers cost 40% of the last minute; the slowest link is worker 0's to worker 1 on b: "
        "10.0 MB/s, 20 ms"
    )


def test_transfers_over_links_that_nobody_measured_still_cost() -> None:
    recent = {0: steps(0.6, 0.4, exposed=0.4), 1: steps(0.6, 0.4, exposed=0.38)}
    assert "most of it on worker 0" in name_culprit(recent, [record(0), record(1)])


def test_packing_is_named() -> None:
    recent = {rank: steps(1.0, 0.0, encode=0.3) for rank in range(2)}
    assert name_culprit(recent, []) == "packing gradients cost 30% of the last minute"


def test_silence_is_the_news_and_who_is_furthest_behind() -> None:
    words = name_culprit({0: steps(1.0, 0.0), 1: steps(1.0, 0.0, count=9)}, [], silence=40.0)
    assert words == "no step has ended for 40.00 s; furthest behind is worker 1, in step 9"


def test_nobody_is_blamed_for_nothing() -> None:
    assert name_culprit({0: steps(0.99, 0.01), 1: steps(0.99, 0.01)}, []).startswith("nothing stands out: 99%")
    assert name_culprit({}, []) == "no step was recorded in the last minute"
    assert "waiting for data" in name_culprit({0: steps(0.5, 0.0, load=0.5)}, [])
