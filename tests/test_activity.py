"""Community figures are counted, and what a contributor looks for is there: row 144 of docs/systems.toml."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def git(folder: Path, *words: str, day: str = "2026-01-05", author: str = "a@example.org") -> None:
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", author), ("EMAIL", author), ("DATE", f"{day}T12:00:00Z"))
    }
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, env={**os.environ, **who})


def activity(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(ROOT / "scripts/activity.py"), *words], capture_output=True, text=True)


def test_commits_people_and_lines_are_counted_by_month(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for number, (day, author) in enumerate([("2026-01-05", "a@x"), ("2026-01-06", "b@x"), ("2026-02-01", "a@x")]):
        (tmp_path / f"{number}.txt").write_text("one\ntwo\n" * (number + 1))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", f"part: {number}", day=day, author=author)
    assert json.loads(activity("--json", str(tmp_path)).stdout) == [
        {"month": "2026-01", "commits": 2, "people": 2, "lines": 6},
        {"month": "2026-02", "commits": 1, "people": 1, "lines": 6},
    ]


def test_a_folder_that_is_no_clone_is_refused_on_one_line(tmp_path: Path) -> None:
    done = activity(str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path) in done.stderr


def test_a_contributor_finds_rules_templates_checks_and_examples() -> None:
    rules = (ROOT / "CONTRIBUTING.md").read_text()
    assert "make check" in rules
    assert "make test" in rules
    assert "make check test" in (ROOT / ".ci/run").read_text()
    assert len(list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))) >= 2
    assert len(list((ROOT / "examples").glob("*.py"))) >= 4
