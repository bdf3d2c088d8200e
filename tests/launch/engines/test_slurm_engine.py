"""`shoal run --on slurm`: a real controller and two nodes, from Debian's packages, on this machine."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import shoal, soon
from slurmd import SlurmCluster, missing
from soaked import SoakedEnds

from shoal.cli.engine import go
from shoal.cli.options import RunOptions
from shoal.core.errors import UsageError
from shoal.launch.engines import slurm, slurm_job
from shoal.launch.engines.base import EngineOptions, EngineRole
from shoal.launch.engines.slurm import SlurmEngine
from shoal.launch.engines.slurm_job import batch_script, read_time
from shoal.launch.engines.table import find_surrounding
from shoal.testing import EngineRun

needs_slurm = pytest.mark.skipif(bool(missing()), reason=f"Slurm lacks {missing()}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    found = SlurmCluster(tmp_path_factory.mktemp("s") / "slurm", nodes=3)
    yield found
    found.close()


@needs_slurm
class TestSlurm(SoakedEnds):
    """Submitted from outside, followed to its end."""

    size = 2
    cluster: SlurmCluster
    fixed_machines = "a Slurm without accounting refuses to resize a job; a spare node that comes in is shown below"

    @pytest.fixture(autouse=True)
    def _use(self, cluster: SlurmCluster, request: pytest.FixtureRequest) -> Iterator[None]:
        request.instance.cluster = cluster
        yield
        cluster.tool("scancel", "--user=root")
        cluster.wait_idle()

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        words = ["--on", "slurm", "--nodes", "2", "--time", "10m", "--partition", "p"]
        return words, {**self.cluster.environment, "SHOAL_ADDRESS": "127.0.0.1"}

    def lose_node(self, run: EngineRun) -> object:
        """With --no-kill the job stays, and the run goes on smaller."""
        self.cluster.kill_node("n2")
        run.wait_for(lambda: run.training(1), "the run goes on smaller")
        return lambda: self.cluster.restore_node("n2")

    def check_nothing_left(self) -> None:
        assert soon(30.0, lambda: not self.cluster.jobs()), self.cluster.jobs()


def options(folder: Path, *command: str) -> EngineOptions:
    return EngineOptions(nodes=4, workers=2, time="2h", partition="gpu", name="one", runs=folder, command=command)


def test_the_script_that_is_submitted(tmp_path: Path) -> None:
    text = batch_script(options(tmp_path, "--on", "slurm", "--plan", "topk(0.01), every(1)", "train.py"))
    for line in ("--nodes=4", "--time=02:00:00", "--partition=gpu", "--requeue", "--no-kill", "--signal=B:USR1@90"):
        assert f"#SBATCH {line}\n" in text
    assert re.search(
        r"^exec .* -m shoal run --on slurm --plan 'topk\(0.01\), every\(1\)' train.py$", text, re.MULTILINE
    )
    assert [read_time(each) for each in ("90m", "1d12h", "30", "")] == ["01:30:00", "36:00:00", "30", ""]
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_dry_run_prints_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    words = ("--on", "slurm", "--nodes", "2", "--name", "one", "--dry-run")
    outcome = shoal(tmp_path, "run", *words, "script.py", SLURM_JOB_ID="")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("#!/bin/sh\n#SBATCH --job-name=one\n#SBATCH --nodes=2\n")
    assert not (tmp_path / "runs").exists(), "nothing was submitted"


def test_the_role_follows_from_the_variables(tmp_path: Path) -> None:
    def role(**variables: str) -> EngineRole:
        return SlurmEngine(options(tmp_path), variables).role

    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    assert role() is EngineRole.SUBMIT
    assert role(SLURM_JOB_ID="7", SLURM_PROCID="0") is EngineRole.HEAD
    assert role(**task, SLURM_PROCID="0") is EngineRole.HEAD
    assert role(**task, SLURM_PROCID="2") is EngineRole.JOIN
    assert SlurmEngine(options(tmp_path), {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}).begins_again
    assert len(SlurmEngine(options(tmp_path), {**task, "SLURM_PROCID": "0"}).machines()) == 2


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (["PENDING", "RUNNING", "COMPLETED"], 0),
        (["RUNNING", "CANCELLED", "PENDING", "RUNNING", "COMPLETED"], 0),
        (["RUNNING", "", "FAILED", "", "FAILED"], 3),
        (["RUNNING", "CANCELLED", "CANCELLED"], 1),
    ],
)
def test_a_job_is_followed_to_its_end_and_past_a_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[str], code: int
) -> None:
    """An empty state stands for a controller that does not answer."""
    left = list(seen)

    def look(job: str) -> tuple[str, int]:
        state = left.pop(0)
        if not state:
            raise UsageError("scontrol: did not answer")
        return state, 3 if state == "FAILED" else 0

    monkeypatch.setattr(slurm_job, "look", look)
    monkeypatch.setattr(slurm_job, "LOOK", 0.0)
    (tmp_path / "log").touch()
    assert slurm_job.follow("7", tmp_path / "log") == code
    assert not left


def test_several_machines_of_slurm_or_mpi_are_found_by_their_variables() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}
    assert find_surrounding({}) == ""
    assert find_surrounding(job) == "slurm", "a batch script"
    assert find_surrounding({**job, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}) == "slurm", "salloc"
    assert find_surrounding({**job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}) == "", "a step of one task"
    assert find_surrounding({**job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}) == "slurm"
    assert find_surrounding({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}) == ""
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert find_surrounding({**job, **rank}) == "mpi"


def test_inside_of_an_allocation_slurm_is_used_without_being_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    words = ("--name", "one", "--dry-run", "script.py")
    outcome = shoal(tmp_path, "run", *words, **inside)
    assert outcome.code == 0, outcome.err
    assert "started by slurm: all its machines take part; --on local stays on this one" in outcome.err
    assert "run --on slurm --restarts" in outcome.out
    assert "submits nothing" in shoal(tmp_path, "run", "--on", "local", *words, **inside).err


def test_a_job_whose_time_is_over_before_its_first_step_is_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(slurm, "run_tool", lambda words, what: asked.append(list(words)) or "")
    engine = SlurmEngine(options(tmp_path), {"SLURM_JOB_ID": "7"})

    def train(_: RunOptions) -> int:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the signal interrupts whatever is done")

    assert go(engine, RunOptions("script.py"), False, train) == 130
    assert asked == [["scontrol", "requeue", "7"]]
    assert "job 7 is over; it is queued again" in capsys.readouterr().err


@needs_slurm
@pytest.mark.soak("engines")
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on(cluster: SlurmCluster, tmp_path: Path) -> None:
    """SIGUSR1, as Slurm sends it before the limit: a checkpoint, the same job again, --resume, the same ledger."""
    cluster.wait_idle()
    environment = {**cluster.environment, "SHOAL_ADDRESS": "127.0.0.1"}
    words = ["--on", "slurm", "--nodes", "2", "--time", "10m", "--checkpoint", "20steps"]
    run = EngineRun(tmp_path, words, environment)
    run.wait_training(2)
    job = cluster.jobs()[0].split()[0]
    cluster.tool("scancel", "--batch", "--signal=USR1", job)
    run.wait_for(lambda: "is queued again and goes on from the checkpoint" in run.said, "the job is queued again")
    assert soon(60.0, lambda: f"{job} PENDING" in cluster.jobs()), cluster.jobs()
    cluster.tool("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm would wait for two minutes
    run.wait_for(lambda: "it goes on from its checkpoint" in run.said, "the run goes on")
    run.wait_for(lambda: run.said.count("trains pid=") >= 4, "all train again")
    assert run.end() == 0, run.said
    rows = shoal(tmp_path, "show", run.name, "--ledger", "--json").json["epochs"]
    assert rows
    assert all({"missing": 0, "duplicate": 0}.items() <= row.items() for row in rows)


@needs_slurm
@pytest.mark.soak("engines")
def test_a_spare_node_takes_the_place_of_a_lost_one(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Three nodes are allocated, --nodes 2 are wanted: this machine, one node, and two that wait."""
    cluster.wait_idle()
    environment = {**cluster.environment, "SHOAL_ADDRESS": "127.0.0.1"}
    words = ["salloc", "--nodes=3", "--no-kill", "--quiet", sys.executable, "-m", "shoal", "run", "--on", "slurm"]
    run = EngineRun(tmp_path, [*words, "--nodes", "2"], environment)
    before = run.wait_training(2)
    cluster.kill_node("n1")
    try:
        run.wait_for(lambda: any(p not in before.values() for p in run.training(2).values()), "a spare node trains")
        assert run.end() == 0, run.said
    finally:
        cluster.restore_node("n1")
    assert (tmp_path / "runs" / run.name / "machines" / "n2").exists(), "n2 took part"
    run.check_tidy()


@needs_slurm
@pytest.mark.soak("engines")
def test_tasks_of_a_step_are_machines(cluster: SlurmCluster, tmp_path: Path) -> None:
    cluster.wait_idle()
    environment = {**cluster.environment, "SHOAL_ADDRESS": "127.0.0.1"}
    step = ["srun", "--nodes=2", "--ntasks=2", sys.executable, "-m", "shoal", "run", "--on", "slurm"]
    run = EngineRun(tmp_path, step, environment)
    run.wait_training(2)
    assert run.end() == 0, run.said
    run.check_tidy()
