"""The engines by name, and `--on ENGINE[:WHERE]` read."""

from collections.abc import Mapping
from importlib import import_module

from shoal.core.errors import UsageError
from shoal.core.suggest import hint
from shoal.launch.engines.base import EngineOptions, LaunchEngine

ENGINES: Mapping[str, tuple[str, str]] = {
    "local": ("local", "LocalEngine"),
    "ssh": ("ssh", "SshEngine"),
    "slurm": ("slurm", "SlurmEngine"),
    "ray": ("ray", "RayEngine"),
    "kubernetes": ("kubernetes", "KubernetesEngine"),
    "mpi": ("mpi", "MpiEngine"),
    "pool": ("pool", "PoolEngine"),
}
"""Name -> file and class; a file is imported when its engine is asked for."""
OTHER_NAMES = {"k8s": "kubernetes", "kube": "kubernetes", "mpirun": "mpi"}


def split_on(text: str) -> tuple[str, str]:
    """The engine's name and what follows the colon; UsageError if there is no such engine."""
    name, _, where = text.partition(":")
    name = OTHER_NAMES.get(name, name)
    if name == "torchrun":
        raise UsageError(
            "--on torchrun: torchrun starts the script itself; type torchrun … train.py, without shoal run"
        )
    if name not in ENGINES:
        raise UsageError(
            f"--on {text}: no engine {name!r}; {hint(name, list(ENGINES), 'there are ' + ', '.join(ENGINES))}"
        )
    # `ray://HOST` was split at its colon.
    if name == "ray" and where.startswith("//"):
        where = f"ray:{where}"
    return name, where


def make_engine(name: str, options: EngineOptions) -> LaunchEngine:
    file, kind = ENGINES[name]
    engine: type[LaunchEngine] = getattr(import_module(f"shoal.launch.engines.{file}"), kind)
    return engine(options)


def find_surrounding(environment: Mapping[str, str]) -> str:
    """The engine that has started this process for several machines, known by its variables; empty: none has."""
    from shoal.launch.engines.mpi import find_rank
    from shoal.launch.engines.slurm_nodes import count_machines

    rank = find_rank(environment)
    if rank is not None and rank[1] > 1:
        return "mpi"  # also where mpirun itself runs inside of a Slurm job
    return "slurm" if count_machines(environment) > 1 else ""
