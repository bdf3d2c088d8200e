"""A real Prometheus, Debian's, reads /metrics of the page with the token of a file."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from forked import command, soon
from test_ps import FOREVER, WAIT
from test_watch import served

pytestmark = [
    pytest.mark.usefixtures("tidy"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus; scripts/debian.sh"),
]

SCRAPE = """
scrape_configs:
  - job_name: shoal
    scrape_interval: 200ms
    scrape_timeout: 200ms
    authorization: {credentials_file: TOKEN}
    static_configs: [{targets: ["TARGET"]}]
"""


@contextmanager
def prometheus(folder: Path, target: str, token: Path) -> Iterator[str]:
    """The address of a server that scrapes `target`."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{found.getsockname()[1]}"
    (folder / "scrape.yml").write_text(SCRAPE.replace("TOKEN", str(token)).replace("TARGET", target))
    words = ["--config.file", folder / "scrape.yml", "--storage.tsdb.path", folder / "tsdb"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words, "--web.listen-address", place], stderr=log)
        try:
            yield f"http://{place}"
        finally:
            process.terminate()
            process.wait(WAIT)


def ask(address: str, query: str) -> list[float]:
    """The samples that a query has now; none while the server is starting."""
    try:
        answer = httpx.get(f"{address}/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return []
    found = answer.json()["data"]["result"] if answer.status_code == 200 else []
    return [float(each["value"][1]) for each in found]


@pytest.mark.soak("page")
@pytest.mark.timeout(300)
def test_a_live_run_is_scraped_with_the_token_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FOREVER)
    running = command(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    page = command(tmp_path, "watch", "--port", "0", "--token-file", "token")
    target = served(page).removeprefix("http://").partition("/")[0]
    with prometheus(tmp_path, target, tmp_path / "token") as address:
        steps = 'shoal_steps_total{run="one"}'
        assert soon(WAIT, lambda: len(ask(address, steps)) == 2), (tmp_path / "prometheus.log").read_text()
        before = ask(address, steps)
        assert soon(WAIT, lambda: all(now > then for now, then in zip(ask(address, steps), before, strict=True)))
        assert ask(address, 'shoal_worker_up{run="one"}') == [1.0, 1.0]
        assert ask(address, 'up{job="shoal"}') == [1.0]
        (tmp_path / "wrong").write_text("another-token-of-some-length")
        (tmp_path / "second").mkdir()
        with prometheus(tmp_path / "second", target, tmp_path / "wrong") as stranger:
            assert soon(WAIT, lambda: ask(stranger, 'up{job="shoal"}') == [0.0]), "without the token nothing is read"
            assert ask(stranger, "shoal_steps_total") == []
    for each in (running, page):
        os.kill(each.pid, signal.SIGINT)
        each.wait(WAIT)
