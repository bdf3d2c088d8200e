"""How fresh the page of `shoal watch` is: a run of 4 workers in Debian's chromium, ten steps a second of each.

    python benchmarks/page_fresh.py [--opened 5] [--updates 20]

Prints medians and the worst: seconds from opening the address in a new tab until the steps of the run are shown, and
from the moment a step stands in the record until the page shows it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page import RATE, grow, make_record
from playwright.sync_api import Browser, Page, sync_playwright

WORKERS, BEFORE, DEADLINE = 4, 2000, 60.0
SHOWN = "Number(document.querySelector('[data-fact=steps]')?.textContent.replaceAll(',', '') ?? 0)"


class GrowingRecord:
    """One more step of every worker, ten times a second, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.written: dict[int, float] = {}
        self._folder, self._over = folder, threading.Event()
        self._thread = threading.Thread(target=self._grow)
        self._thread.start()

    def _grow(self) -> None:
        number = BEFORE
        while not self._over.wait(1 / RATE):
            grow(self._folder, WORKERS, number)
            number += 1
            self.written[number] = time.monotonic()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def until(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := what()):
        if time.monotonic() > end:
            raise SystemExit(f"the page did not show it within {DEADLINE:.0f} s")
    return found


def seconds_to_open(browser: Browser, address: str) -> float:
    tab = browser.new_page()
    began = time.monotonic()
    tab.goto(address)
    until(lambda: tab.evaluate(SHOWN) > 0)
    seconds = time.monotonic() - began
    tab.close()
    return seconds


def seconds_late(tab: Page, record: GrowingRecord) -> float:
    """Of the next step that the page shows."""
    before = tab.evaluate(SHOWN)
    number = until(lambda: (now := tab.evaluate(SHOWN)) > before and now)
    steps = int(number) // WORKERS if number not in record.written else int(number)
    return time.monotonic() - record.written[steps]


def measure(address: str, record: GrowingRecord, opened: int, updates: int) -> dict[str, float]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        openings = [seconds_to_open(browser, address) for _ in range(opened)]
        tab = browser.new_page()
        tab.goto(address)
        until(lambda: tab.evaluate(SHOWN) > 0)
        late = [seconds_late(tab, record) for _ in range(updates)]
        browser.close()
    named = {"open": openings, "late": late}
    medians = {f"{name}_median": round(statistics.median(each), 2) for name, each in named.items()}
    return medians | {f"{name}_worst": round(max(each), 2) for name, each in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--opened", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = make_record(Path(root), WORKERS, BEFORE)
        words = [sys.executable, "-m", "shoal", "watch", "--runs", root, "--port", "0"]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        address = server.stderr.readline().split()[-1].replace("#runs", "#run=big")
        record = GrowingRecord(folder)
        try:
            print(json.dumps(measure(address, record, options.opened, options.updates)))
        finally:
            record.stop()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
