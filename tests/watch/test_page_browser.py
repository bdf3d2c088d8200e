"""The page in a real browser: every view, live, stopped, started from the form, and refused."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import msgspec
import pytest
from fake_runs import ended, logged, make_run, started, step
from forked import Forked, children, command, soon

from shoal.core.events import LayerTimes, ModelsJoined, ResultsReported, RunEvent, TrafficCounted, WarningRaised
from shoal.core.process import HostProcess
from shoal.serve.serving_notice import ServedCheckpoint, ServingNotice, write_notice
from shoal.watch.worker_logs import LogWriter

CHROMIUM = which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium; scripts/debian.sh installs it"),
    pytest.mark.timeout(400),
]

WAIT = 180.0
HOSTILE = '<img src=x onerror="window.hacked=1"><b>bold</b>'
TRAIN = """
import time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in run.epochs(10**9):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        time.sleep(0.05)
    print("epoch", epoch, "<script>window.hacked=1</script>", flush=True)
"""


class ServedPage:
    """A server of its own process, and one browser tab at a time."""

    def __init__(self, folder: Path, browser: Any, runtime: Path) -> None:
        self.folder, self.browser = folder, browser
        self.settings = {"XDG_RUNTIME_DIR": str(runtime), "SHOAL_REGISTER": "0"}
        self.environment = os.environ | self.settings
        self._serve()

    def _serve(self) -> None:
        folder = self.folder
        words = [sys.executable, "-m", "shoal", "watch", "--runs", str(folder / "runs"), "--port", "0"]
        self._output = (folder / "server").open("wb")
        self.process = subprocess.Popen(words, stderr=self._output, cwd=folder, env=self.environment)
        assert soon(WAIT, lambda: b"http://" in (folder / "server").read_bytes())
        address = re.search(r"http://\S+", (folder / "server").read_text())
        assert address is not None
        self.address = address.group(0)

    def open(self, place: str = "", **more: Any) -> Any:
        tab = self.browser.new_page(**({"viewport": {"width": 1280, "height": 900}} | more))
        tab.set_default_timeout(1000 * WAIT)
        base, _, token = self.address.partition("/#runs&")
        tab.goto(f"{base}/#{place or 'runs'}&{token}")
        return tab

    def restart(self) -> None:
        """Kill the server and start another, with another token."""
        self.process.kill()
        self.process.wait(WAIT)
        self._output.close()
        self._serve()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT)
        self._output.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("page")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        (folder / "runs").mkdir()
        make_runs(folder / "runs")
        runtime = tmp_path_factory.mktemp("runtime")
        serve_checkpoints(folder / "runs/quiet-one", runtime)
        served = ServedPage(folder, browser, runtime)
        yield served
        stop = [sys.executable, "-m", "shoal", "stop", "--now", "live"]  # one that was resumed has no parent here
        subprocess.run(stop, env=served.environment, cwd=folder, check=False, stderr=subprocess.DEVNULL)
        served.close()
        browser.close()


def make_runs(root: Path) -> None:
    """Two runs with something for every view, and one whose every name is hostile."""
    for name, loss in (("quiet-one", 1.0), ("quiet-two", 2.0)):
        make_run(root, *(quiet_worker(rank, loss) for rank in (0, 1)), run=name)
    hostile = [started(0, host=HOSTILE), step(0), logged(0, **{HOSTILE: 1.0}), WarningRaised(at=1.0, text=HOSTILE)]
    record = make_run(root, [*hostile, ended("failed", HOSTILE)], run="hostile")
    info = msgspec.structs.replace(record.info, run=HOSTILE, plan=HOSTILE, script=HOSTILE)
    (record.dir / "run.json").write_bytes(msgspec.json.encode(info))
    logs = LogWriter(record.dir)
    logs.add(0, HOSTILE)
    logs.close()


def serve_checkpoints(run: Path, runtime: Path) -> None:
    """As a server does that follows the run; its process is this one."""
    versions = (ServedCheckpoint(80, "answers", 40), ServedCheckpoint(120, "shadow", 10, 0, 10, 9))
    notice = ServingNotice(
        dir=str(run.resolve()), model="digits", address="http://127.0.0.1:8080", process=HostProcess.of(os.getpid()),
        versions=versions, history=("120 is tried: shadow",),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        write_notice(notice)


def quiet_worker(rank: int, loss: float) -> list[RunEvent]:
    layers = {"body.0": ("Conv2d", 20), "head": ("Linear", 10)}
    joined = ModelsJoined(at=1.0, join=0, models=["Net"], optimizers=["SGD"], parameters=30, layers=layers)
    norms = {"body.0": 1.5, "head": 0.5}
    times = LayerTimes(at=2.0, step=3, samples=2, backward={"head": 0.1}, aggregation={}, gradient=norms)
    peer = str(1 - rank)
    traffic = TrafficCounted(at=3.0, step=3, peers={peer: (4000, 5000)}, links={peer: (2e6, 0.02)})
    steps = [each for n in range(20) for each in (step(n), logged(n, loss=loss / (n + 1)))]
    report = ResultsReported(at=120.0, step=20, epoch=0, metrics={"accuracy": 0.75})
    return [started(rank), joined, *steps, times, traffic, report, ended()]


@pytest.fixture
def running(page: ServedPage) -> Iterator[Forked]:
    """A run of two workers that goes on until it is stopped."""
    (page.folder / "script.py").write_text(TRAIN)
    words = ["run", "--name", "live", "--workers", "2", "--spare", "1", "--checkpoint", "1h", "--quiet", "script.py"]
    run = command(page.folder, *words, **page.settings)
    yield run
    if run.pid in children():
        os.kill(run.pid, signal.SIGQUIT)
        run.wait(WAIT)


def wait_until(tab: Any, condition: str) -> None:
    """Wait in this process: the page's own policy forbids the browser to evaluate text."""
    assert soon(WAIT, lambda: tab.evaluate(condition)), condition


def test_runs_are_listed_filtered_and_compared(page: ServedPage) -> None:
    tab = page.open()
    tab.get_by_role("link", name="quiet-one").wait_for()
    assert "token" not in tab.url
    tab.keyboard.press("/")
    tab.keyboard.type("quiet")
    tab.get_by_role("link", name="hostile").wait_for(state="detached")
    for name in ("quiet-one", "quiet-two"):
        tab.locator(f"[data-pick={name}]").check()
    tab.get_by_role("button", name="Compare 2").click()
    tab.locator(".js-plotly-plot .scatterlayer .trace").nth(1).wait_for(state="attached")
    for along, title in (("samples", "samples"), ("seconds", "seconds of training"), ("sent", "bytes sent")):
        tab.get_by_label("Along").select_option(along)
        tab.locator(".js-plotly-plot").get_by_text(title, exact=True).wait_for()
    tab.close()


def test_every_view_of_a_run(page: ServedPage) -> None:
    tab = page.open("run=quiet-one")
    tab.locator(".culprit").filter(has_text="last minute").wait_for()
    tab.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(state="attached")
    tab.locator(".js-plotly-plot .barlayer .point").first.wait_for(state="attached")
    seen = {
        "Timeline": "within a step the phases",
        "Network": "round trip",
        "Members": "steps behind",
        "Agreement": "Staleness",
        "Model": "|g| 1.5000",
        "Plan": "allreduce(ring)",
        "Checkpoints": "120 is tried: shadow",
        "Log": "Worker",
        "Evaluation": "no evaluation",
    }
    for tab_name, words in seen.items():
        tab.get_by_role("tab", name=tab_name).click()
        tab.get_by_role("tabpanel").get_by_text(words).first.wait_for()
    tab.get_by_role("tab", name="Network").click()
    tab.get_by_role("cell", name="2.0 MB/s").first.wait_for()
    tab.get_by_role("tab", name="Checkpoints").click()
    tab.get_by_role("table", name="Served as digits").get_by_role("row", name="120 shadow 10 0 90 % of 10").wait_for()
    drawn = "document.querySelector('.gantt .scroll canvas')"
    tab.get_by_role("tab", name="Timeline").click()
    tab.get_by_label("Last").select_option("60")
    pixels = f"{drawn}.getContext('2d').getImageData(0, 0, {drawn}.width, 20).data"
    wait_until(tab, f"{pixels}.some((each) => each > 0)")
    tab.close()


def test_the_keyboard_reaches_every_tab(page: ServedPage) -> None:
    tab = page.open("run=quiet-one")
    tab.get_by_role("tab", name="Overview").wait_for()
    tab.keyboard.press("3")
    tab.locator("[role=tab][aria-selected=true]").filter(has_text="Network").wait_for()
    tab.get_by_role("tab", name="Network").focus()
    tab.keyboard.press("ArrowRight")
    tab.locator("[role=tab][aria-selected=true]").filter(has_text="Members").wait_for()
    tab.keyboard.press("?")
    tab.get_by_role("heading", name="Help").wait_for()
    tab.keyboard.press("r")
    tab.get_by_role("heading", name="Runs").wait_for()
    tab.close()


def test_a_narrow_screen_shows_all_of_it_by_day_and_by_night(page: ServedPage) -> None:
    tab = page.open("run=quiet-one", viewport={"width": 400, "height": 800}, color_scheme="light")
    tab.locator(".js-plotly-plot").first.wait_for()
    for name in ("Overview", "Timeline", "Members", "Network"):
        tab.get_by_role("tab", name=name).click()
        wait_until(tab, "document.documentElement.scrollWidth <= 400")
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(18, 24, 30)")):
        tab.emulate_media(color_scheme=scheme)
        wait_until(tab, f"getComputedStyle(document.body).backgroundColor === '{paper}'")
    tab.close()


def test_hostile_names_and_lines_are_text(page: ServedPage) -> None:
    tab = page.open("run=hostile")
    tab.get_by_role("heading").get_by_text(HOSTILE).wait_for()
    tab.locator(".js-plotly-plot").first.wait_for()
    tab.get_by_role("tab", name="Members").click()
    tab.get_by_role("cell", name=f"worker 0 failed: {HOSTILE}").wait_for()
    tab.get_by_role("tab", name="Log").click()
    tab.locator("pre.log").get_by_text(HOSTILE).wait_for()
    assert tab.evaluate("window.hacked === undefined && !document.querySelector('main img')")
    tab.close()


def test_a_wrong_token_is_refused(page: ServedPage) -> None:
    tab = page.browser.new_page()
    tab.goto(re.sub("token=.*", "token=wrong", page.address))
    tab.get_by_role("alert").get_by_text("Refused: the token is missing or wrong").wait_for()
    assert tab.get_by_role("link", name="quiet-one").count() == 0
    tab.close()


def test_a_live_run_moves_and_is_stopped_with_a_checkpoint(page: ServedPage, running: Forked) -> None:
    tab = page.open()
    tab.get_by_role("link", name="live").click()
    steps = "Number(document.querySelector('[data-fact=steps]')?.textContent.replaceAll(',', '') ?? 0)"
    wait_until(tab, f"{steps} > 3")
    before = tab.evaluate(steps)
    wait_until(tab, f"{steps} > {before + 10}")
    tab.get_by_role("tab", name="Log").click()
    tab.locator("pre.log").get_by_text("<script>window.hacked=1</script>").first.wait_for()
    tab.get_by_role("tab", name="Model").click()
    tab.get_by_text("|g|").first.wait_for()
    wanted = tab.get_by_label("Plan to go on by")
    wanted.fill("int9")
    tab.get_by_role("button", name="Switch plan").click()
    tab.get_by_text("int9").first.wait_for()
    wanted.fill("int8")
    wanted.press("Enter")
    tab.get_by_text("asked for allreduce, every(1), int8").wait_for()
    wait_until(tab, "document.querySelector('[data-fact=plan]')?.textContent.includes('int8')")
    tab.get_by_role("tab", name="Agreement").click()
    tab.get_by_role("table", name="Switches of the plan").get_by_text("int8").wait_for()
    tab.get_by_role("tab", name="Members").click()
    tab.get_by_role("button", name="Add a worker").click()
    tab.get_by_role("button", name="Remove worker 2").wait_for()  # it trains
    tab.get_by_role("button", name="Remove worker 1").click()
    tab.get_by_role("cell", name=re.compile("worker 1 left after .* as the user asked")).wait_for()
    tab.get_by_role("button", name="Add a worker").wait_for()  # in its place, if somebody wants one
    tab.on("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Stop with checkpoint").click()
    tab.get_by_role("heading").get_by_text("interrupted").wait_for()
    tab.get_by_role("tab", name="Checkpoints").click()
    tab.get_by_text("shoal run --resume live").wait_for()
    assert running.wait(WAIT).code == 130
    tab.close()


def test_a_stopped_run_goes_on_and_outlives_the_server(page: ServedPage) -> None:
    """Halt and resume by the API alone; another server finds the run, its logs and its state."""
    tab = page.open("run=live")
    tab.get_by_role("button", name="Resume").click()
    tab.get_by_role("heading").get_by_text("running").wait_for()
    steps = "Number(document.querySelector('[data-fact=steps]')?.textContent.replaceAll(',', '') ?? 0)"
    before = tab.evaluate(steps)
    tab.close()
    page.restart()
    tab = page.open("run=live")
    wait_until(tab, f"{steps} > {before + 10}")  # it went on without a server, and with another one
    tab.get_by_role("tab", name="Log").click()
    tab.locator("pre.log").get_by_text("epoch 0").first.wait_for()  # of before it was stopped
    tab.on("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Stop with checkpoint").click()
    tab.get_by_role("heading").get_by_text("interrupted").wait_for()
    tab.close()


def test_a_run_is_started_from_the_form(page: ServedPage) -> None:
    table = page.folder / "fruit.csv"
    rows = [f"{n % 2 + n / 1000},{1 - n % 2},{'apple' if n % 2 else 'pear'}" for n in range(200)]
    table.write_text("\n".join(["width,height,kind", *rows]))
    tab = page.open("train")
    tab.get_by_label("Upload a CSV").check()
    tab.get_by_label("File").set_input_files(table)
    tab.get_by_label("Plan").fill("allreduec")
    tab.get_by_role("button", name="Train").click()
    tab.get_by_role("alert").get_by_text("allreduec").wait_for()
    tab.get_by_label("Plan").fill("allreduce, every(1)")
    tab.get_by_label("Epochs").fill("3")
    tab.get_by_label("Name").fill("fruit")
    tab.get_by_role("button", name="Train").click()
    tab.get_by_role("heading").get_by_text("done").wait_for()
    tab.get_by_role("tab", name="Evaluation").click()
    tab.get_by_role("table", name="Confusion matrix").get_by_role("rowheader", name="pear").wait_for()
    tab.close()
