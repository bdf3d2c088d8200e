"""One thread for torch in the tests themselves: worlds of workers are forked from this process."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("SHOAL_REGISTER", "0")  # tests of the registry ask for it; other runs leave no model behind

import huge_pages
import pytest
import soak_parts
import torch
from hypothesis import settings

torch.set_num_threads(1)
# Tests send these signals; a shell that runs the tests in the background, or nohup, has them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
settings.register_profile("busy", deadline=None)  # a busy machine is slow, and that is no fault
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="NAME", help="only this part of the tests marked soak; see docs/testing.md")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("--part"):
        items[:], others = soak_parts.select(items, part)
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the test files as pytest rewrites them, also under PYTHONDONTWRITEBYTECODE.

    Each process of the tests spends nine seconds on all of them, and one where it finds them.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_finish() -> None:
    """What is imported lives as long as the tests: no collection, here or in a fork, need look through it again."""
    gc.collect()
    gc.freeze()
    huge_pages.collapse()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says of which commit it is: with the seed, which stands in the test or its name, it can be replayed."""
    report = yield
    if report.failed:
        report.sections.append(("replay", f"commit {commit()}: pytest {item.nodeid!r}"))
    return report


def commit() -> str:
    words: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": False}
    found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], **words).stdout.strip()
    return found or "unknown"


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders, and with them the sockets of one host, are made by this test alone."""
    place = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place
