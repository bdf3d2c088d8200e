"""The codec of docs/extend.md, and what pip would leave behind of its package."""

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
CODEC, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROJECT = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])["project"]


def install(folder: Path, module: str, code: str, project: dict[str, Any]) -> None:
    """What pip leaves behind: the module, and a dist-info folder with the entry points."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["shoal.codecs"].items())
    (info / "entry_points.txt").write_text(f"[shoal.codecs]\n{points}\n")
