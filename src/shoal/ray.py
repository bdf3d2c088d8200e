"""For users of Ray Train: `shoal.ray.train(fn, …)` trains a function on a Ray cluster, as `shoal run --on ray` would.

    import shoal.ray

    def loop(config):
        run = shoal.start()
        ...

    if __name__ == "__main__":
        summary = shoal.ray.train(loop, config={"lr": 0.1}, nodes=3, workers=2)

What travels is the source of the file that defines the function, as text, and the configuration, as JSON: nothing is
pickled. The file is executed on every worker under another name than `__main__`, then the function is called.
"""

import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError, UsageError

PROGRAM = """\
import json, sys, types

module = types.ModuleType("shoal_train")
module.__file__ = {file!r}
sys.modules["shoal_train"] = module
exec(compile({source!r}, {file!r}, "exec"), module.__dict__)
module.{name}({call})
"""


def train(
    fn: Callable[..., Any],
    *,
    config: Mapping[str, Any] | None = None,
    nodes: int | None = None,
    workers: int = 1,
    address: str = "",
    plan: str | None = None,
    runs: str | None = None,
) -> dict[str, Any]:
    """Train `fn` on `nodes` nodes of a Ray cluster with `workers` workers each; returns the run's summary.

    `fn` is a function of a file, called with `config` if it takes an argument. `address` is that of the cluster; else
    it is the one this process is in. Raise ShoalError if the training fails; its output says why.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(make_script(fn, config))
        words = ["--on", f"ray:{address}" if address else "ray", "--workers", str(workers), "--json"]
        for option, value in (("--nodes", nodes), ("--plan", plan), ("--runs", runs)):
            words += [option, str(value)] if value is not None else []
        command = [sys.executable, "-m", "shoal", "run", *words, str(script)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ShoalError(f"training {fn.__name__} on Ray failed with exit code {done.returncode}; see its output")
    *lines, summary = done.stdout.splitlines()
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    found: dict[str, Any] = json.loads(summary)
    return found


def make_script(fn: Callable[..., Any], config: Mapping[str, Any] | None) -> str:
    """The program every worker runs."""
    if not inspect.isfunction(fn) or fn.__qualname__ != fn.__name__ or fn.__name__ == "<lambda>":
        raise UsageError(f"{fn!r} cannot be sent as text; give a function that is defined at the top of a file")
    try:
        file = inspect.getsourcefile(fn) or ""
        source = Path(file).read_text()
    except (OSError, TypeError):
        raise UsageError(f"the source of {fn.__name__} is not in a file; write it to one and import it") from None
    takes = bool(inspect.signature(fn).parameters)
    try:
        call = f"json.loads({json.dumps(dict(config or {}))!r})" if takes else ""
    except (TypeError, ValueError) as error:
        raise UsageError(f"config cannot be written as JSON: {error}; use numbers, texts, lists and dicts") from None
    return PROGRAM.format(file=file, source=source, name=fn.__name__, call=call)
