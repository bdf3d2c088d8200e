"""`shoal run --on local`: the machines of a list are processes of this one."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from forked import refused

from shoal.core.errors import UsageError
from shoal.launch import engines
from shoal.launch.engines.base import EngineOptions
from shoal.launch.engines.local import LocalEngine
from shoal.launch.engines.machines import MachineList
from shoal.launch.engines.table import ENGINES, make_engine, split_on
from shoal.testing import EngineRun, LauncherCase
from shoal.testing.launcher import WAIT


class TestLocal(LauncherCase):
    size = 2

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        (folder / "machines").write_text("a  # the second\n")
        return ["--on", "local:@machines"], {}

    def test_starts_survives_and_ends(self, tmp_path: Path) -> None:
        """As the case has it; docs/systems.toml names it."""
        super().test_starts_survives_and_ends(tmp_path)

    def lose_node(self, run: EngineRun) -> object:
        """All processes of machine a at once; it is started again."""
        before = run.training(self.size)
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if b"/machines/a" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        run.wait_for(lambda: "a was lost" in run.said, "the loss of a is told")
        run.wait_for(lambda: self.replaced(run, before), "a is back")
        return None

    def add_machine(self, run: EngineRun) -> None:
        (run.folder / "machines").write_text("a\nb\n")

    def remove_machine(self, run: EngineRun) -> None:
        (run.folder / "machines").write_text("a\n")
        run.wait_for(lambda: "b is taken out of the list; it leaves the run" in run.said, "b is asked to leave")

    def after_removal(self, run: EngineRun) -> None:
        """Ctrl-C ends both machines that are left; that runs end with equal replicas is shown by the case above."""
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(WAIT) == 130, run.said
        run.check_tidy()

    @pytest.mark.soak("engines")
    def test_ctrl_c_ends_all_machines(self, tmp_path: Path) -> None:
        """`make test` sends Ctrl-C after a machine was removed, see above."""
        super().test_ctrl_c_ends_all_machines(tmp_path)

    @pytest.mark.soak("engines")
    def test_an_error_of_the_script_is_told(self, tmp_path: Path) -> None:
        """`test_fleet.py` shows in process that such a machine is given up, with its last line."""
        super().test_an_error_of_the_script_is_told(tmp_path)


def test_the_table_of_engines_is_complete() -> None:
    for name in ENGINES:
        where = {"ssh": "host", "kubernetes": "image"}.get(name, "")
        assert make_engine(name, EngineOptions(where)).name == name
    assert split_on("k8s:image:tag") == ("kubernetes", "image:tag")
    assert split_on("ray://head:10001") == ("ray", "ray://head:10001")
    for text, complaint in {"slrum": "did you mean 'slurm'", "torchrun": "without shoal run"}.items():
        with pytest.raises(UsageError, match=complaint):
            split_on(text)


def test_an_engine_is_one_short_file() -> None:
    """Whoever adds one finds how in one of the others."""
    folder = Path(engines.__file__).parent
    lengths = {file: len((folder / f"{file}.py").read_text().splitlines()) for file, _ in ENGINES.values()}
    assert not {file: length for file, length in lengths.items() if length > 150}


def test_machines_are_read_as_users_write_them(tmp_path: Path) -> None:
    assert [(m.name, m.workers) for m in MachineList("a,me@b=3,c=0", 2, "--on x").read()] == [("a", 2), ("me@b", 3)]
    for text, complaint in {"a,a": "twice", "-oProxyCommand=x": "no machine", "a=b": "no machine"}.items():
        with pytest.raises(UsageError, match=complaint):
            MachineList(text, 1, "--on x")
    file = tmp_path / "machines"
    file.write_text("a\n# none\nb=2\n")
    machines = MachineList(f"@{file}", 1, "--on x")
    assert [m.name for m in machines.read()] == ["a", "b"]
    file.write_text("a\nb==\n")
    assert [m.name for m in machines.read()] == ["a", "b"], "a file that cannot be read changes nothing"
    file.write_text("b\n")
    assert [m.name for m in machines.read()] == ["b"]


def test_nodes_are_machines_in_all() -> None:
    assert len(LocalEngine(EngineOptions(nodes=3)).machines()) == 2
    with pytest.raises(UsageError, match="drop --nodes"):
        LocalEngine(EngineOptions("a,b", nodes=3))


def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    cases = {
        ("--nodes", "2"): "say which with --on",
        ("--dry-run",): "say which with --on",
        ("--on", "slrum"): "did you mean 'slurm'",
        ("--on", "ssh"): "names no machine",
        ("--on", "local:a", "--lab", "2 hosts"): "drop one of the two",
        ("--on", "local:a", "--key", "k"): "drop --key",
        ("--on", "local:a", "--plan", "alone"): "use allreduce",
        ("--on", "local:a", "--dry-run"): "submits nothing",
        ("--on", "mpi"): "mpirun has not started this",
        ("--on", "k8s"): "names no image",
        ("--on", "slurm", "--time", "soon", "--dry-run"): "is no time",
    }
    for words, text in cases.items():
        outcome = refused(tmp_path, "run", *words, "script.py")
        assert outcome.code == 2, (words, outcome.err)
        assert text in outcome.err.splitlines()[-1], outcome.err
    assert not (tmp_path / "runs").exists(), "nothing was begun"
