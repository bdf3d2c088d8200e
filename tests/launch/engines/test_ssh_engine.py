"""`shoal run --on ssh:a,b`: real ssh and sshd, on ports of this machine."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import shoal
from soaked import SoakedEnds
from sshd import SSHD, SshMachines

from shoal.launch.engines.base import EngineOptions
from shoal.launch.engines.ssh import SshEngine, far_side
from shoal.testing import EngineRun

pytestmark = pytest.mark.skipif(
    not (shutil.which("ssh") and Path(SSHD).exists() and os.getuid() == 0), reason="needs root, ssh and sshd"
)


@pytest.fixture(autouse=True)
def machines(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SshMachines]:
    found = SshMachines(tmp_path_factory.mktemp("ssh") / "sshd", "a", "b")
    if request.instance is not None:
        request.instance.machines = found
    yield found
    found.close()


class TestSsh(SoakedEnds):
    size = 2
    machines: SshMachines

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        (folder / "machines").write_text("a\n")
        return ["--on", "ssh:@machines"], {"SHOAL_SSH": self.machines.command}

    def test_starts_survives_and_ends(self, tmp_path: Path) -> None:
        """As the case has it; docs/systems.toml names it."""
        super().test_starts_survives_and_ends(tmp_path)

    def add_machine(self, run: EngineRun) -> None:
        (run.folder / "machines").write_text("a\nb\n")

    def remove_machine(self, run: EngineRun) -> None:
        (run.folder / "machines").write_text("a\n")

    def lose_node(self, run: EngineRun) -> object:
        before = run.training(self.size)
        self.machines.kill("a", run.name)
        run.wait_for(lambda: "a was lost" in run.said, "the loss of a is told")

        def back() -> None:
            self.machines.start("a")
            run.wait_for(lambda: self.replaced(run, before), "a is back")

        return back


def test_the_doctor_looks_at_each_machine(tmp_path: Path, machines: SshMachines) -> None:
    environment = {"SHOAL_SSH": machines.command}
    outcome = shoal(tmp_path, "doctor", "--on", "ssh:a,nowhere.invalid", **environment)
    assert outcome.code == 1, outcome.out
    assert "ok    ssh a: shoal" in outcome.out
    assert "LACK  ssh nowhere.invalid" in outcome.out
    assert "without a password" in outcome.out


def test_the_far_side_says_what_is_missing(tmp_path: Path) -> None:
    """With a PATH on which no python has Shoal."""
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    import subprocess
    import sys

    text = far_side(["join"]).replace(sys.executable, str(fake))
    done = subprocess.run(["sh", "-c", text], env={"PATH": f"{tmp_path}:/bin"}, capture_output=True, text=True)
    assert done.returncode == 69
    assert "pip install shoal" in done.stderr


def test_no_secret_is_in_the_command_line(machines: SshMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SSH", machines.command)
    engine = SshEngine(EngineOptions("a,b=2"))
    assert [(m.name, m.workers) for m in engine.machines()] == [("a", 1), ("b", 2)]
    assert engine.address()[0] == "127.0.0.1"
    assert "secret" not in far_side(["join", "x", "--key", "-"])
