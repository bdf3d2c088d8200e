"""The façade: what it promises is there, and no more."""

import subprocess
import sys

import shoal


def test_every_name_resolves() -> None:
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None


def test_the_lists_agree() -> None:
    assert sorted(shoal.__all__) == shoal.__all__ == dir(shoal)
    assert set(shoal._HOMES) | {"__version__"} == set(shoal.__all__)
    assert len(shoal.__all__) <= 40


def test_an_unknown_name_is_no_attribute() -> None:
    assert not hasattr(shoal, "strat")


def test_the_facade_alone_is_light() -> None:
    program = (
        "import sys, shoal; shoal.UsageError; print(sorted({'torch', 'numpy', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
