"""Which algorithm is taken: both are tried in turns, all workers choose alike, and only from complete figures."""

from shoal.sync.engine.algorithms.tuner import AGAIN, TRIALS, WARM, AlgorithmTuner

BOTH = ("auto", "ring")


def exchange(tuner: AlgorithmTuner, seconds: dict[str, float], late: float = 0.3) -> str:
    """One exchange of two workers, of which the first waits for the second; the algorithm it took."""
    tuner.begin_exchange()
    algorithm = tuner.algorithm
    tuner.record([seconds[algorithm] + late, seconds[algorithm]])
    return algorithm


def ways(seconds: dict[str, float], number: int = WARM + TRIALS + 3) -> list[str]:
    tuner = AlgorithmTuner(BOTH)
    return [exchange(tuner, seconds) for _ in range(number)]


def test_both_are_tried_and_the_quicker_is_kept() -> None:
    tried = ["auto"] * WARM + list(BOTH) * (TRIALS // 2)
    assert ways({"auto": 0.02, "ring": 0.01}) == [*tried, "ring", "ring", "ring"]
    assert ways({"auto": 0.01, "ring": 0.02}) == [*tried, "auto", "auto", "auto"]


def test_a_tie_changes_nothing() -> None:
    assert ways({"auto": 0.0100, "ring": 0.0098})[-1] == "auto"


def test_a_figure_that_is_missing_makes_no_choice() -> None:
    tuner = AlgorithmTuner(BOTH)
    for number in range(WARM + TRIALS + 1):
        tuner.begin_exchange()
        tuner.record([0.01 if tuner.algorithm == "ring" else 0.02, None if number == WARM else 0.01])
    assert tuner.algorithm == "auto"


def test_other_members_or_a_long_time_begin_anew() -> None:
    tuner, quick = AlgorithmTuner(BOTH), {"auto": 0.02, "ring": 0.01}
    for _ in range(AGAIN):
        exchange(tuner, quick)
    assert tuner.algorithm == "ring"
    assert exchange(tuner, quick) == "auto"
    for _ in range(WARM + TRIALS):
        exchange(tuner, quick)
    tuner.restart()
    assert tuner.algorithm == "auto"
