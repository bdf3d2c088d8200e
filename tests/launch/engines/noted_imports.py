"""As `sitecustomize.py` on $PYTHONPATH: writes the name of every module that is looked for to the file $IMPORTS."""

import os
import sys


class NotedImports:
    """Finds nothing. The file is known from the start: a process may change its environment."""

    file = os.environ.get("IMPORTS", "")

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        with open(self.file, "a") as file:
            file.write(f"{name}\n")


if NotedImports.file:
    sys.meta_path.insert(0, NotedImports())  # type: ignore[arg-type]
