"""Time from the command to the end of the first step on each engine, three workers on three machines, in turns.

    python benchmarks/engines.py [--repeats 3] [--only local,ssh,mpi,slurm,ray,pool]

All machines are this one. Beside Shoal: torchrun with DDP; under Slurm `sbatch`, and `srun` + torchrun on each node; on
Ray its TorchTrainer (`pip install 'ray[train]'`), or, where that is not installed, an actor for each worker that runs
DDP. What is not installed is left out.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from report import Table, machine_line, write_report
from startup import DDP, SHOAL, first_step

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "launch/engines"), str(TESTS)]
PYTHON = [sys.executable, "-m"]
TORCHRUN = [*PYTHON, "torch.distributed.run"]
Turns = dict[str, list[str]]


def shoal(folder: Path, *words: str) -> list[str]:
    return [*PYTHON, "shoal", "run", *words, "--runs", str(folder / "runs"), str(folder / "ours.py")]


@contextlib.contextmanager
def local(folder: Path) -> Iterator[Turns]:
    three = [*TORCHRUN, "--standalone", "--nproc-per-node", "3", str(folder / "theirs.py")]
    yield {"local": shoal(folder, "--on", "local", "--nodes", "3"), "torchrun": three}


@contextlib.contextmanager
def ssh(folder: Path) -> Iterator[Turns]:
    from sshd import SshMachines

    machines = SshMachines(folder / "sshd", "a", "b")
    os.environ["SHOAL_SSH"] = machines.command
    try:
        yield {"ssh": shoal(folder, "--on", "ssh:a,b")}
    finally:
        machines.close()


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Turns]:
    from slurmd import SlurmCluster

    cluster = SlurmCluster(folder / "slurm", nodes=3)
    os.environ.update(cluster.environment)
    node = [*TORCHRUN, "--nnodes", "3", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "$SLURM_JOB_ID"]
    batch = folder / "theirs.sh"
    line = " ".join([*node, "--rdzv-endpoint", "127.0.0.1:29477", str(folder / "theirs.py")])
    batch.write_text(f"#!/bin/sh\nsrun {line}\n")
    theirs = ["sh", "-c", f"sbatch --wait --nodes=3 --output={folder}/job {batch} >/dev/null; cat {folder}/job"]
    try:
        yield {"slurm": shoal(folder, "--on", "slurm", "--nodes", "3"), "sbatch + torchrun": theirs}
    finally:
        cluster.close()


RAY_ACTORS = """
import contextlib, io, os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def worker(rank, source):
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="29478")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(source, {})
    return said.getvalue()

found = ray.get([worker.remote(rank, open(sys.argv[2]).read()) for rank in range(3)])
print(found[0])
"""
RAY_TRAIN = """
import contextlib, io, sys, tempfile, ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
folder = tempfile.mkdtemp()
source = open(sys.argv[2]).read()
source = source.replace('dist.init_process_group("gloo")', "").replace("dist.destroy_process_group()", "")

def loop():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(source, {})
    if "first step" in said.getvalue():
        open(folder + "/said", "w").write(said.getvalue())

scaling, kept = ScalingConfig(num_workers=3, use_gpu=False), RunConfig(storage_path=folder)
TorchTrainer(loop, torch_config=TorchConfig(backend="gloo"), scaling_config=scaling, run_config=kept).fit()
print(open(folder + "/said").read())
"""


@contextlib.contextmanager
def ray(folder: Path) -> Iterator[Turns]:
    from test_ray_engine import RayProcess

    cluster = RayProcess()
    cluster.tell("add")  # a TorchTrainer starts no worker where it was typed: it needs a third node
    trains = subprocess.run([sys.executable, "-c", "import ray.train.torch"], capture_output=True, check=False)
    (folder / "by_ray.py").write_text(RAY_ACTORS if trains.returncode else RAY_TRAIN)
    theirs = cluster.inside(sys.executable, str(folder / "by_ray.py"), cluster.address, str(folder / "theirs.py"))
    try:
        ours = cluster.inside(*shoal(folder, "--on", f"ray:{cluster.address}", "--nodes", "3"))
        yield {"ray": ours, "Ray actors + DDP" if trains.returncode else "Ray Train": theirs}
    finally:
        cluster.close()


@contextlib.contextmanager
def mpi(folder: Path) -> Iterator[Turns]:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3"]
    yield {"mpi": [*mpirun, *shoal(folder, "--on", "mpi")]}


@contextlib.contextmanager
def pool(folder: Path) -> Iterator[Turns]:
    words = [*PYTHON, "shoal", "pool", "start", "--on", "local", "--nodes", "3", "--name", "bench"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    next(line for line in process.stderr if "are warm" in line)
    try:
        yield {"pool (warm)": shoal(folder, "--on", "pool:bench")}
    finally:
        process.terminate()
        process.wait(60.0)


ENGINES: dict[str, tuple[Callable[[Path], contextlib.AbstractContextManager[Turns]], str]] = {
    "local": (local, sys.executable),
    "ssh": (ssh, "ssh"),
    "mpi": (mpi, "mpirun"),
    "slurm": (slurm, "sbatch"),
    "ray": (ray, "unshare"),
    "pool": (pool, sys.executable),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(ENGINES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "reports")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the clusters of this benchmark end with it
    os.environ.setdefault("SHOAL_ADDRESS", "127.0.0.1")
    os.environ["SHOAL_REGISTER"] = "0"
    table = Table("how", "median s", "all s")
    for name in args.only.split(","):
        make, needs = ENGINES[name]
        if shutil.which(needs) is None:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "ours.py").write_text(SHOAL)
            (folder / "theirs.py").write_text(DDP)
            with make(folder) as turns:
                measure(turns, args.repeats, table)
    note = "Seconds from the command to the end of the first step of three workers on three machines, all this one."
    write_report(args.out, "engines", "Starting on engines", [note, machine_line()], table)


def measure(turns: Turns, repeats: int, table: Table) -> None:
    """In turns, so that what else the machine does hits all alike."""
    seconds: dict[str, list[float]] = {how: [] for how in turns}
    for _ in range(repeats):
        for how, command in turns.items():
            seconds[how].append(first_step(command))
            time.sleep(1.0)
    for how, found in seconds.items():
        table.add(how, f"{statistics.median(found):.1f}", ", ".join(f"{each:.1f}" for each in found))


if __name__ == "__main__":
    main()
