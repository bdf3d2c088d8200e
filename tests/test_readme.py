"""The README runs: its script, as it stands, and the commands that it shows."""

import re
import shlex
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(*languages: str) -> list[str]:
    """The fenced blocks of the README in one of `languages`."""
    return [text for name, text in re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", README, re.M | re.S) if name in languages]


def scripts() -> list[str]:
    return [text for text in blocks("python") if "shoal.start()" in text]


def commands() -> list[str]:
    """Lines that start with `shoal `, a prompt and comments aside; a word in capitals stands for the reader's own."""
    lines = (line.removeprefix("$ ") for text in blocks("console", "sh", "bash") for line in text.splitlines())
    plain = (line.partition("  #")[0].strip() for line in lines)
    return [line for line in plain if line.startswith("shoal ") and not re.search(r"\b[A-Z]{3,}\b|…", line)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader would stand: a clone, with the script saved under the names the commands use."""
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in {word for line in commands() for word in shlex.split(line) if re.fullmatch(r"\w+\.py", word)}:
        (tmp_path / name).write_text(scripts()[0])
    return tmp_path


def test_it_is_short() -> None:
    assert 0 < len(README.splitlines()) <= 120


def test_every_python_block_is_python() -> None:
    assert blocks("python")
    for text in blocks("python"):
        compile(text, "README.md", "exec")


def test_its_script_runs_in_a_world_of_one(tmp_path: Path) -> None:
    assert scripts(), "the README shows no script with shoal.start()"
    for text in scripts():
        done = forked.python(tmp_path, text, SHOAL_RUNS=str(tmp_path / "runs"), OMP_NUM_THREADS="1").wait()
        assert done.code == 0, done.err
    assert len(list(tmp_path.glob("runs/*/worker-0.jsonl"))) == len(scripts())


def test_its_commands_run(folder: Path) -> None:
    assert commands(), "the README shows no command"
    for line in commands():
        done = forked.command(folder, *shlex.split(line)[1:], OMP_NUM_THREADS="1").wait(100)
        assert done.code == 0, (line, done.err)
