"""Kernels: compiled where they run, kept where they can be, and never a reason to fail."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.wire import kernels
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.kernels import progress
from shoal.wire.kernels.kernel_cache import cache_folder
from shoal.wire.layout import FlatLayout

PROGRAM = (
    "import torch; from shoal.wire.codecs.twobit import TwoBitCodec; print(len(TwoBitCodec().encode(torch.ones(9))[0]))"
)


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env={**os.environ, **env})


def test_every_signature_is_compiled():
    assert len(kernels.warm()) == 25
    assert kernels.fast()
    with kernels.reference():
        assert not kernels.fast()


def test_an_unknown_kernel_is_an_error():
    with pytest.raises(KeyError):
        kernels.get("none")


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where a folder is due: nobody can write below, whoever runs the tests
    done = run("-c", PROGRAM, NUMBA_CACHE_DIR=str(blocked))
    assert done.stdout == "19\n"
    reason, compiling = done.stderr.splitlines()
    assert reason.startswith("shoal: note: compiled kernels are not kept: ")
    assert compiling == "shoal: compiling kernels (not kept) …"


def test_without_numba_the_reference_serves():
    program = f"""
import sys; sys.modules["numba"] = None
{PROGRAM}
from shoal.wire.codecs.qsgd import QsgdCodec
from shoal.wire.layout import FlatLayout
x = torch.linspace(-1, 1, 90)
print(float((QsgdCodec(8).decode(QsgdCodec(8).encode(x)[0], FlatLayout.flat(90)) - x).abs().max()) < 0.05)
"""
    done = run("-W", "error", "-c", program)
    assert (done.stdout, done.stderr) == ("19\nTrue\n", "")


def test_a_kernel_without_feedback_leaves_its_input_alone():
    layout, values = FlatLayout.flat(5000), torch.randn(5000)
    before = values.clone()
    OneBitCodec().encode(values, layout)
    assert torch.equal(values, before)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A cache folder of the test's own; calling it makes this process forget what it has compiled and said."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "get", kernels.get.__wrapped__)

    def forget() -> None:
        cache_folder.cache_clear()
        monkeypatch.setattr(progress, "_said", False)

    forget()
    yield forget
    cache_folder.cache_clear()


def test_compiling_is_said_once_and_only_if_it_is_done(
    fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kernels.warm(["any_three", "add_at"], "twobit") == ["any_three", "add_at"]
    assert capsys.readouterr().err == "shoal: compiling 2 kernels for twobit (once on this machine) …\n"
    fresh()
    kernels.warm(["any_three", "add_at"], "twobit")
    assert capsys.readouterr().err == ""


class Hostile:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_what_others_could_have_put_into_the_cache_is_never_read(
    tmp_path: Path, fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.warm(["any_three"])
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(pickle.dumps(Hostile(tmp_path / "canary")))
    tmp_path.chmod(0o777)
    fresh()
    assert bool(kernels.get("any_three")(np.full(4, 3, np.uint8)))
    assert not (tmp_path / "canary").exists()
    assert f"compiled kernels are not kept: {str(tmp_path)!r} can be written by others" in capsys.readouterr().err
