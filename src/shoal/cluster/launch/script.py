"""Runs a file as `python FILE ARGS` would: `__main__`, `__file__`, `sys.argv` and `sys.path[0]` are what it expects.

`runpy` comes close, but changes `sys.argv[0]` and takes `__main__` away again before threads and exit handlers ran.
"""

import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


def run_script(script: Path, arguments: list[str]) -> None:
    """Run `script` in this process; its exceptions, SystemExit included, come through."""
    path = str(script.absolute())
    sys.argv = [str(script), *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    loader = _Loader("__main__", path)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    loader.exec_module(main)


class _Loader(SourceFileLoader):
    """Reads the source every time: a script, unlike a module, leaves no compiled file behind."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)
