"""The codec and the synchronizer of docs/extend.md, and what pip would leave behind of their packages."""

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
CODEC, TEST, FILTER, SYNCHRONIZER, SYNCHRONIZER_TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROJECT, SYNCHRONIZER_PROJECT = (
    tomllib.loads(text)["project"] for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
)


def install(folder: Path, module: str, code: str, project: dict[str, Any]) -> None:
    """What pip leaves behind: the module, and a dist-info folder with the entry points."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
