"""What a run decides about its codec by itself, from the command line: in the record, and shown."""

from pathlib import Path

import forked
import pytest

from shoal.core.events import ChoiceMade, GuardChecked
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker


def run(folder: Path, plan: str, workers: int = 2, **env: str) -> tuple[list[object], str]:
    """Worker 1's events, and what `shoal show` prints."""
    words = ["-w", str(workers), "--plan", plan, "--name", "one", "--quiet"]
    done = forked.train(folder, forked.TRAIN, *words, **env)
    assert done.code == 0, done.err
    shown = forked.shoal(folder, "show", "one")
    assert shown.code == 0, shown.err
    return list(JournalTail(folder / "runs" / "one" / "worker-1.jsonl").read()), " ".join(shown.out.split())


def test_the_guards_word_stands_in_the_record_and_on_the_page(tmp_path: Path) -> None:
    events, page = run(tmp_path, "topk(0.01), by_size(0), guard(1.0, every=2)")
    found = [event for event in events if isinstance(event, GuardChecked)]
    assert [event.step for event in found] == [1, 3, 5]
    assert {event.steps for event in found} == {2}
    assert all(-1.0 <= event.cosine <= 1.0 for event in found)
    assert found[0].action == "tightened"
    assert found[0].ratio == 0.02
    assert "what the run decided" in page
    assert f"step 1: cosine {found[0].cosine:.3f} over 2 steps, below: 0.02 of the elements travel" in page


def test_a_guard_round_two_stages_only_says(tmp_path: Path) -> None:
    events, page = run(tmp_path, "onebit, by_size(0), meet(twostage), guard(1.0, every=3)", workers=3)
    assert {event.action for event in events if isinstance(event, GuardChecked)} == {"outside"}
    assert "this codec cannot send more" in page


def test_auto_inside_one_host_is_no_codec(tmp_path: Path) -> None:
    events, page = run(tmp_path, "wire(auto)")
    (found,) = [event for event in events if isinstance(event, ChoiceMade)]
    assert (found.codec, found.step) == ("", 0)
    assert "step 0: no codec from the next step on: inside one host nothing crosses a socket" in page


def test_auto_over_sockets_says_why(tmp_path: Path) -> None:
    """Twelve steps; forty bytes a step tell no rate."""
    longer = forked.TRAIN.replace("run.epochs(2)", "run.epochs(4)")
    (tmp_path / "script.py").write_text(longer)
    done = forked.shoal(
        tmp_path, "run", "-w", "2", "--plan", "wire(auto)", "--name", "one", "--quiet", "script.py",
        SHOAL_ENGINE="collective",
    )  # fmt: skip
    assert done.code == 0, done.err
    for rank in (0, 1):
        (found,) = [
            e for e in JournalTail(tmp_path / f"runs/one/worker-{rank}.jsonl").read() if isinstance(e, ChoiceMade)
        ]
        assert (found.codec, found.step) == ("", 8)
        assert found.reason == "the network's rate is not known, because too little went over it"
        assert found.steps[""] > 0


@pytest.mark.parametrize(("plan", "words"), [("guard(2)", "budget must be a number"), ("wire(fast)", "one of auto")])
def test_what_makes_no_sense_is_refused_on_one_line(plan: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(forked.TRAIN)
    done = forked.refused(tmp_path, "run", "-w", "2", "--plan", f"topk(0.1), {plan}", "script.py")
    assert done.code == 2
    assert words in done.err
