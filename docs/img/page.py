"""Makes the screenshots of docs/watch.md in a real browser: page-*.png beside this file.

    python docs/img/page.py

Trains twice on the bundled digits (two workers, some twenty seconds each) in a temporary folder and opens the page.
Needs Debian's chromium and the extras `dashboard` and `examples`.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SHOTS = {name.lower(): name for name in ("Overview", "Timeline", "Network", "Model", "Evaluation")}


def train(folder: Path, name: str, *words: str) -> None:
    command = [sys.executable, "-m", "shoal", "run", "--workers", "4", "--name", name, "--quiet", *words]
    command += [str(EXAMPLES / "classify.py"), "--data", "digits", "--model", "alexnet", "--epochs", "4"]
    subprocess.run(command, cwd=folder, check=True)


def shoot(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="digits-fp16").wait_for()
    for box in page.locator("[data-pick]").all():
        box.check()
    page.screenshot(path=HERE / "page-runs.png")
    page.get_by_role("button", name="Compare 2").click()
    page.locator(".scatterlayer .trace").nth(1).wait_for(state="attached")
    page.screenshot(path=HERE / "page-compare.png")
    page.get_by_role("link", name="digits-plain").click()
    for name, tab in SHOTS.items():
        page.get_by_role("tab", name=tab).click()
        if name == "timeline":
            page.get_by_label("Last").select_option("60")
            page.get_by_label("Zoom").select_option("50")
        page.wait_for_timeout(2500)  # for the picture only: charts fade in
        page.screenshot(path=HERE / f"page-{name}.png")
    page.goto(re.sub("#.*", "#train", page.url))
    page.get_by_role("button", name="Train").wait_for()
    page.screenshot(path=HERE / "page-train.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        folder = Path(root)
        train(folder, "digits-plain")
        train(folder, "digits-fp16", "--plan", "fp16")
        words = [sys.executable, "-m", "shoal", "watch", "--port", "0"]
        server = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = server.stderr.readline().split()[-1]
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            shoot(browser.new_page(viewport={"width": 1280, "height": 960}), address)
            dark = browser.new_page(viewport={"width": 400, "height": 820}, color_scheme="dark")
            dark.goto(address.replace("#runs", "#run=digits-plain"))
            dark.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(state="attached", timeout=60_000)
            time.sleep(1)
            dark.screenshot(path=HERE / "page-narrow.png")
            browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
