"""Which way is taken: both are tried in turns, all workers choose alike, and nothing is chosen from half a hearing."""

from shoal.sync.engine.algorithms.tuner import AGAIN, TRIALS, WARM, AlgorithmTuner

WAYS = ("auto", "ring")


def exchange(tuning: AlgorithmTuner, seconds: dict[str, float], late: float = 0.3) -> str:
    """One exchange of two workers, of which the first waits for the second; the way it took."""
    tuning.next()
    way = tuning.way
    tuning.heard([seconds[way] + late, seconds[way]])
    return way


def ways(seconds: dict[str, float], number: int = WARM + TRIALS + 3) -> list[str]:
    tuning = AlgorithmTuner(WAYS)
    return [exchange(tuning, seconds) for _ in range(number)]


def test_both_are_tried_and_the_quicker_is_kept() -> None:
    tried = ["auto"] * WARM + list(WAYS) * (TRIALS // 2)
    assert ways({"auto": 0.02, "ring": 0.01}) == [*tried, "ring", "ring", "ring"]
    assert ways({"auto": 0.01, "ring": 0.02}) == [*tried, "auto", "auto", "auto"]


def test_a_tie_changes_nothing() -> None:
    assert ways({"auto": 0.0100, "ring": 0.0098})[-1] == "auto"


def test_a_figure_that_is_missing_makes_no_choice() -> None:
    tuning = AlgorithmTuner(WAYS)
    for number in range(WARM + TRIALS + 1):
        tuning.next()
        tuning.heard([0.01 if tuning.way == "ring" else 0.02, None if number == WARM else 0.01])
    assert tuning.way == "auto"


def test_other_members_or_a_long_time_begin_anew() -> None:
    tuning, quick = AlgorithmTuner(WAYS), {"auto": 0.02, "ring": 0.01}
    for _ in range(AGAIN):
        exchange(tuning, quick)
    assert tuning.way == "ring"
    assert exchange(tuning, quick) == "auto"
    for _ in range(WARM + TRIALS):
        exchange(tuning, quick)
    tuning.begin()
    assert tuning.way == "auto"
