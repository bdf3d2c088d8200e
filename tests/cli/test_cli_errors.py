"""How commands refuse: as a block and as a decorator, and only for what the user wrote."""

import pytest
import typer

from shoal.cli.errors import usage_errors
from shoal.core.errors import PeerLost, UsageError


def test_a_usage_error_becomes_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, usage_errors():
        raise UsageError("no")
    assert left.value.exit_code == 2
    assert capsys.readouterr() == ("", "shoal: no\n")


def test_it_decorates_a_command_that_is_called_twice() -> None:
    @usage_errors()
    def command(good: bool) -> str:
        if good:
            return "fine"
        raise UsageError("no")

    assert command(True) == "fine"
    for _ in range(2):
        with pytest.raises(typer.Exit):
            command(False)


def test_other_errors_pass() -> None:
    with pytest.raises(PeerLost), usage_errors():
        raise PeerLost("worker 1")
