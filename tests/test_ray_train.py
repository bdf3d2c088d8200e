"""`shoal.ray.train`: what travels is text."""

from pathlib import Path

import pytest

import shoal.ray
from shoal.core.errors import UsageError
from shoal.launch.worker import run_script

SOURCE = """
import sys
from pathlib import Path

def loop(config):
    Path(config["out"]).write_text(f"{__name__} {config['lr'] * 2}")

def plain():
    pass

if __name__ == "__main__":
    sys.exit("the driver's part must not run on a worker")
"""


def test_a_function_becomes_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util
    import os
    import subprocess
    import sys

    (tmp_path / "mine.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    script = tmp_path / "train.py"
    script.write_text(shoal.ray.make_script(mine.loop, {"lr": 0.25, "out": str(tmp_path / "out")}))
    (tmp_path / "mine.py").unlink()
    subprocess.run([sys.executable, str(script)], check=True, env=dict(os.environ))
    assert (tmp_path / "out").read_text() == "shoal_train 0.5"


def test_what_cannot_be_sent_is_refused() -> None:
    def inner() -> None: ...

    for fn in (lambda: None, inner, print):
        with pytest.raises(UsageError, match="defined at the top of a file"):
            shoal.ray.make_script(fn, None)
    with pytest.raises(UsageError, match="written as JSON"):
        shoal.ray.make_script(run_script, {"x": object()})
