"""What a long benchmark has measured so far: a stopped one goes on where it was."""

import json
import sys
from pathlib import Path
from typing import Any


class Kept:
    """What was measured so far, in a file that survives whatever ends the benchmark."""

    def __init__(self, path: Path, settings: dict[str, Any], fresh: bool) -> None:
        self.path, self.entries = path, [{"kind": "settings", **settings}]
        if path.exists() and not fresh:
            found = [entry for line in path.read_text().splitlines() if (entry := _parsed(line))]
            if found[:1] != self.entries:
                sys.exit(f"{path} was begun with other options; repeat those, or begin anew with --fresh")
            self.entries = found
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))  # without a torn last line

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def has(self, entry: dict[str, Any]) -> bool:
        """Whether a good result stands there for what `entry` names."""
        return any(entry.items() <= other.items() and not other.get("error") for other in self.entries)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All of one kind, without those that failed and were made good later."""
        found = [{k: v for k, v in entry.items() if k != "kind"} for entry in self.entries if entry["kind"] == kind]
        return [entry for entry in found if not entry.get("error") or not self._made_good(kind, entry)]

    def _made_good(self, kind: str, entry: dict[str, Any]) -> bool:
        names = ("model", "hosts", "rate", "delay", "contestant", "repeat", "seed")
        return self.has({"kind": kind, **{name: entry[name] for name in names if name in entry}})


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "kind" in entry else None
