"""Prints how active this repository is: commits, people, changed lines and releases, month by month.

    python scripts/activity.py [--json] [FOLDER]

It reads `git log` and nothing else, so it counts what the clone holds.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

MARK = "\x1e"


def months(folder: Path) -> list[dict[str, str | int]]:
    """Return a row for every month that has a commit, oldest first."""
    log = subprocess.run(
        ["git", "-C", str(folder), "log", "--no-merges", "--numstat", f"--format={MARK}%as %ae"],
        capture_output=True,
        text=True,
        check=False,
    )
    if log.returncode:
        sys.exit(f"activity: {folder}: {log.stderr.strip() or 'git log failed'}; give the folder of a clone")
    commits: dict[str, int] = defaultdict(int)
    people: dict[str, set[str]] = defaultdict(set)
    lines: dict[str, int] = defaultdict(int)
    for commit in log.stdout.split(MARK)[1:]:
        head, *changes = commit.splitlines()
        day, _, author = head.partition(" ")
        month = day[:7]
        commits[month] += 1
        people[month].add(author)
        # a binary file has "-" instead of numbers
        counts = (re.match(r"(\d+)\t(\d+)\t", change) for change in changes)
        lines[month] += sum(int(count[1]) + int(count[2]) for count in counts if count)
    return [
        {"month": month, "commits": commits[month], "people": len(people[month]), "lines": lines[month]}
        for month in sorted(commits)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    args = parser.parse_args()
    rows = months(args.folder)
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'month':8} {'commits':>8} {'people':>7} {'lines':>9}")
    for row in rows:
        print(f"{row['month']:8} {row['commits']:8} {row['people']:7} {row['lines']:9,}")


if __name__ == "__main__":
    main()
