"""`shoal` and its commands: help, version, and no torch where none is needed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from forked import shoal

from shoal.cli.ending import EXIT_INTERRUPTED
from shoal.cli.errors import interruptible
from shoal.core.version import __version__

COMMANDS = ("run", "ps", "stop", "plan", "show", "compare", "systems", "bench")

WITHOUT_TORCH = """
import sys
from shoal.cli.main import main
for words in (["--version"], ["--help"], ["run", "--help"], ["bench", "--help"], ["plan", "list"],
              ["plan", "explain", "allreduce"], ["systems"], ["ps"], ["show"], ["compare", "a", "b"], ["stop", "a"],
              ["run", "nothing.py"], ["run", "--plan", "x", __file__],
              ["bench", "--peers", "x", __file__]):
    try:
        main(words)
    except SystemExit as stop:
        print("ended", words, stop.code)
    assert "torch" not in sys.modules, words
"""


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    outcome = shoal(tmp_path)
    assert all(command in outcome.out for command in COMMANDS)
    assert outcome.err == ""


def test_python_m_shoal_is_shoal() -> None:
    done = subprocess.run([sys.executable, "-m", "shoal", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"shoal {__version__}\n", "")


def test_commands_that_only_look_do_not_import_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_TORCH)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    codes = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if line.startswith("ended")]
    assert codes == ["0"] * 8 + ["2"] * 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_may_be_interrupted_at_any_time(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(typer.Exit) as stop, interruptible():
        os.kill(os.getpid(), number)
    assert stop.value.exit_code == EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "shoal: interrupted\n"
    assert signal.getsignal(number) == before
