"""Kernels: compiled where they run, kept where they can be, and never a reason to fail."""

import os
import subprocess
import sys

import pytest
import torch

from shoal.wire import kernels
from shoal.wire.codecs.onebit import OneBit
from shoal.wire.layout import Layout

PROGRAM = "import torch; from shoal.wire.codecs.twobit import TwoBit; print(len(TwoBit().encode(torch.ones(9))[0]))"


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
    assert (done.stdout, done.stderr) == ("19\n", "")


def test_without_numba_the_reference_serves():
    program = f"""
import sys; sys.modules["numba"] = None
{PROGRAM}
from shoal.wire.codecs.qsgd import Qsgd
from shoal.wire.layout import Layout
x = torch.linspace(-1, 1, 90)
print(float((Qsgd(8).decode(Qsgd(8).encode(x)[0], Layout.flat(90)) - x).abs().max()) < 0.05)
"""
    done = run("-W", "error", "-c", program)
    assert (done.stdout, done.stderr) == ("19\nTrue\n", "")


def test_a_kernel_without_feedback_leaves_its_input_alone():
    layout, values = Layout.flat(5000), torch.randn(5000)
    before = values.clone()
    OneBit().encode(values, layout)
    assert torch.equal(values, before)
