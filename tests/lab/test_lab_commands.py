"""`shoal lab`: drawing, a command on a host, and the check."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.lab import app
from shoal.core.units import BitRate
from shoal.lab import check
from shoal.lab.check import LabCheckResult
from shoal.lab.link import LabLink
from shoal.lab.probes import DatagramFate
from shoal.lab.spec import LabSpec

shoal = CliRunner()
EVENTFUL = "hosts = 3\nrate='1mbit'\n[host.1]\nloss=0.5\nspeed=0.25\n[[event]]\nat='30s'\ncut=[2]\nfor='5s'\n"


def test_show_draws_hosts_links_and_events(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(EVENTFUL)
    result = shoal.invoke(app, ["show", str(tmp_path / "lab.toml")])
    assert result.exit_code == 0
    for words in ("switch", "10.77.0.3", "loses 50%", "speed 0.25", "cut host 2", "30s"):
        assert words in result.stdout


def test_what_is_no_lab_is_refused_on_one_line() -> None:
    for command in ("show", "shell", "check"):
        result = shoal.invoke(app, [command, "4 hosts, 10mbot"])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("shoal: '10mbot' is not a part of a lab;")
        assert result.stderr.count("\n") == 1


def test_shell_runs_a_command_on_a_host(possible: None, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print(os.environ['SHOAL_LAB_ADDRESS']); raise SystemExit(7)"
    result = shoal.invoke(app, ["shell", "2 hosts", "--host", "1", "--", "python3", "-c", code])
    assert result.exit_code == 7
    assert capfd.readouterr().out == "10.77.0.2\n"


def test_shell_refuses_a_host_or_command_that_is_not_there(possible: None) -> None:
    assert shoal.invoke(app, ["shell", "2 hosts", "--host", "2", "--", "true"]).exit_code == 2
    assert shoal.invoke(app, ["shell", "2 hosts", "--", "no-such-command"]).exit_code == 1


class Measured:
    """In place of a lab and its probes: hosts that measure what they are asked for, `late` times slower."""

    def __init__(self, late: float) -> None:
        self.late, self.rates = late, 0

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("round_trips", "rate", "fate"):
            patch.setattr(check, name, getattr(self, name))
        patch.setattr(check, "NetworkLab", lambda spec: nullcontext(Links(spec)))

    def round_trips(self, lab: "Links", a: int, b: int, count: int, interval: float) -> list[float]:
        return [self.late * (2 * 0.002 * 2 + 4 * 50 * 8 / 50e6)] * count

    def rate(self, lab: "Links", a: int, b: int, seconds: float) -> float:
        self.rates += 1
        assert lab.link(a) == LabLink(rate=BitRate(50 * 10**6)), "measured without delay and loss"
        return 50e6 / self.late

    def fate(self, lab: "Links", a: int, b: int, count: int, per_second: float) -> DatagramFate:
        assert per_second * 142 * 8 <= 50e6 / 5 + 1, "a full queue loses too"
        return DatagramFate(count, count - round(count * (1 - 0.98**2)), 0, 0, 0, 0)


class Links:
    """The links of a spec, and nothing behind them."""

    def __init__(self, spec: LabSpec) -> None:
        self.now = [host.link for host in spec.hosts]

    def link(self, host: int) -> LabLink:
        return self.now[host]

    def set_link(self, host: int, link: LabLink) -> None:
        self.now[host] = link


@pytest.mark.parametrize(("late", "code", "tries"), [(1.0, 0, 1), (1.2, 1, check.TRIES)])
def test_check_compares_what_was_asked_with_what_it_measures(
    monkeypatch: pytest.MonkeyPatch, late: float, code: int, tries: int
) -> None:
    measured = Measured(late)
    measured.patch(monkeypatch)
    result = shoal.invoke(app, ["check", "2 hosts, 50mbit, 2ms, 2%", "--json"])
    told = json.loads(result.stdout)
    assert [(each["what"], each["ok"]) for each in told["checks"]] == [
        ("round_trip", not code),
        ("rate", not code),
        ("loss", True),
    ]
    assert told["ok"] == (not code)
    assert result.exit_code == code
    assert measured.rates == tries, "a busy machine is slow now and then: what is late is measured again"


@pytest.mark.soak("clock")
def test_check_measures_what_was_asked(possible: None) -> None:
    result = shoal.invoke(app, ["check", "2 hosts, 50mbit, 2ms, 2%", "--json"])
    told = json.loads(result.stdout)
    assert [each["what"] for each in told["checks"]] == ["round_trip", "rate", "loss"]
    assert told["ok"], told
    assert result.exit_code == 0


def test_a_result_outside_is_not_ok() -> None:
    assert LabCheckResult((0, 1), "rate", 100.0, 104.0, 5.0).ok
    assert not LabCheckResult((0, 1), "rate", 100.0, 94.0, 5.0).ok


def test_one_host_cannot_be_checked(possible: None) -> None:
    result = shoal.invoke(app, ["check", "1 host"])
    assert result.exit_code == 2
    assert "no link to another" in result.stderr
