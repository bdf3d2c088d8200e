"""The ledger does not grow with the steps, whatever is dealt, and proves the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core import durable
from shoal.core.ledger import SamplesTaken, committed, ledger_file, prove, read_ledger
from shoal.data.source.base import LoaderStep
from shoal.train import ledger
from shoal.train.ledger import LedgerWriter

STREAMS, BATCH, EVERY = 4, 8, 50


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is written at once, which makes the most entries; and merged soon."""
    monkeypatch.setattr(ledger, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(ledger, "MOST_BYTES", 50_000)
    monkeypatch.setattr(ledger, "MOST_ENTRIES", 100)


def stream(epoch: int = 0) -> Any:
    """A pass over an iterable dataset, of which nobody knows the length."""
    loader = SimpleNamespace(facts=(0, None, 0))
    return SimpleNamespace(trained=False, loader=loader, turn=SimpleNamespace(epoch=epoch, number=0))


def train(one: LedgerWriter, run: Any, first: int, last: int) -> None:
    """Steps first … last, each of the next batch of another stream; a checkpoint every 50 steps."""
    for number in range(first, last + 1):
        begin = (number - 1) // STREAMS * BATCH
        one.dealt(run, LoaderStep((BATCH,), None, ((begin, begin + BATCH),), (number - 1) % STREAMS))
        one.commit(number)
        if number % EVERY == 0:
            assert one.saved(number)


def assert_once(directory: Path, steps: int) -> None:
    (proof,) = prove(read_ledger(directory))
    assert (proof.samples, proof.missing, proof.duplicate) == (BATCH * steps, 0, 0)


def test_an_iterable_dataset_costs_no_entry_a_step(tmp_path: Path) -> None:
    one = LedgerWriter(tmp_path)
    one.begin(0, 1, 1)
    train(one, stream(), 1, 4000)
    one.close()
    assert ledger_file(tmp_path).stat().st_size < 150_000
    assert len(one._book) < 250
    assert_once(tmp_path, 4000)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_steps_stay_small(tmp_path: Path) -> None:
    one = LedgerWriter(tmp_path)
    one.begin(0, 1, 1)
    train(one, stream(), 1, 1_000_000)
    one.close()
    assert ledger_file(tmp_path).stat().st_size < 150_000
    assert_once(tmp_path, 1_000_000)


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_run_goes_on_from_any_checkpoint_that_is_kept(tmp_path: Path, back: int) -> None:
    one, run = LedgerWriter(tmp_path), stream()
    one.begin(0, 1, 1)
    train(one, run, 1, 2030)
    one._rewrite()
    one.close()
    step = 2000 - EVERY * back
    again = LedgerWriter(tmp_path, fence=lambda: (2, 0))
    again.begin(step, 2, 1)
    train(again, run, step + 1, 2100)
    again.close()
    assert_once(tmp_path, 2100)


@pytest.mark.parametrize("entered", [0, 777])
def test_whoever_takes_over_writes_its_book_into_a_merged_file(tmp_path: Path, entered: int) -> None:
    """A founder, or a member that came later; and what the one before it still writes does not count."""
    first, second, run = (
        LedgerWriter(tmp_path),
        LedgerWriter(tmp_path, writes=lambda: main, fence=lambda: (1, 9)),
        stream(),
    )
    main = False
    first.begin(0, 1, 2)
    train(first, run, 1, entered)
    first.cut(entered)
    second.begin(entered, 1, 2)
    for number in range(entered + 1, 2000):
        for one in (first, second):
            train(one, run, number, number)
    first._rewrite()
    main = True
    train(second, run, 2000, 2080)
    second._rewrite()
    train(first, run, 2000, 2010)
    train(second, run, 2081, 2100)
    second.close()
    assert len([e for e in committed(read_ledger(tmp_path)) if isinstance(e, SamplesTaken)]) < 250
    assert_once(tmp_path, 2100)


def test_killed_while_it_is_rewritten_it_has_lost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    one, run = LedgerWriter(tmp_path), stream()
    one.begin(0, 1, 1)
    train(one, run, 1, 400)
    before = ledger_file(tmp_path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(durable.DISK, "rename", die)
        with pytest.raises(Killed):
            one._rewrite()
    assert ledger_file(tmp_path).read_bytes() == before
    train(one, run, 401, 500)
    one.close()
    assert_once(tmp_path, 500)


def test_on_a_full_disk_entries_wait_and_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    one, run = LedgerWriter(tmp_path), stream()
    one.begin(0, 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(durable.DISK, "write", full)
        for number in range(1, 1000):
            begin = (number - 1) // STREAMS * BATCH
            one.dealt(run, LoaderStep((BATCH,), None, ((begin, begin + BATCH),), (number - 1) % STREAMS))
            one.commit(number)
        assert not one.flush()
        assert len(one._entries) < 2 * STREAMS
    one.close()
    assert_once(tmp_path, 999)
