"""`shoal watch` and `shoal run --watch`: what is refused, and that nothing is left behind."""

import os
import re
import signal
from pathlib import Path

import httpx
import pytest
from forked import TRAIN, command, shoal, soon
from test_ps import FOREVER, WAIT, ps

from shoal.cli import companions
from shoal.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("tidy")


def served(running: object) -> str:
    """The address that a command has printed."""
    path = running.err  # type: ignore[attr-defined]
    assert soon(WAIT, lambda: "http://" in path.read_text()), path.read_text()
    found = re.search(r"http://\S+", path.read_text())
    assert found is not None
    return found.group(0)


def ask(address: str, path: str) -> httpx.Response:
    base, _, token = address.partition("/#")
    return httpx.get(base + path, headers={"Authorization": f"Bearer {token.rpartition('token=')[2]}"})


def test_other_machines_need_a_token_of_a_file(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "watch", "--host", "0.0.0.0")
    assert outcome.code == 2
    assert "--token-file FILE" in outcome.err


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "watch", "nobody")
    assert (outcome.code, "no runs in" in outcome.err) == (2, True)


def test_a_port_that_is_taken_is_refused_if_it_was_asked_for(tmp_path: Path) -> None:
    first = command(tmp_path, "watch", "--port", "0")
    port = re.search(r":(\d+)/", served(first))
    assert port is not None
    outcome = shoal(tmp_path, "watch", "--port", port.group(1))
    assert (outcome.code, "choose another --port" in outcome.err) == (2, True)
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(WAIT).code in (0, 130)


def test_the_page_of_a_run_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FOREVER)
    running = command(tmp_path, "run", "--name", "one", "--watch", "script.py")
    address = served(running)
    assert soon(WAIT, lambda: ask(address, "/api/runs/one").json()["summary"]["steps"] > 3)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(WAIT).code == 130
    with pytest.raises(httpx.ConnectError):
        ask(address, "/api/runs")


def test_a_launcher_that_is_killed_leaves_no_page(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FOREVER)
    running = command(tmp_path, "run", "--name", "one", "--watch", "script.py")
    address = served(running)
    assert soon(WAIT, ps)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(WAIT)

    def closed() -> bool:
        try:
            ask(address, "/api/runs")
        except httpx.TransportError:
            return True
        return False

    assert soon(WAIT, closed)
    assert soon(WAIT, lambda: ps() == [])


@pytest.mark.soak("page")
def test_a_run_is_exported_while_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAIN)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "--export", "mlflow", "script.py")
    assert outcome.code == 0, outcome.err
    assert "run one is in MLflow" in outcome.err
    assert (tmp_path / "runs" / "mlflow.db").exists()


def test_what_is_not_installed_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'shoal\[dashboard\]'"):
        companions.check_companions(True, ())
    with pytest.raises(UsageError, match=r"pip install 'shoal\[otel\]'"):
        companions.check_companions(False, ["otel=http://x"])
    with pytest.raises(UsageError, match="no exporter 'x'"):
        companions.check_companions(False, ["x"])
