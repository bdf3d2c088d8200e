"""Makes what `shoal serve` serves, in each of its processes, of what the command names."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from shoal.cli.serve_options import ModelOptions
from shoal.core.errors import UsageError
from shoal.core.ids import PATTERN
from shoal.models.registry import Registry
from shoal.serve.core import ServingCore
from shoal.serve.core_settings import CoreSettings
from shoal.serve.follow import FilledModules, FollowSource, RefreshedPrograms, has_checkpoint, wait_for_checkpoint
from shoal.serve.mapped import MappedPrograms
from shoal.serve.model import CompositeModel
from shoal.serve.replicas.hub import ReplicaHub
from shoal.serve.replicas.loader import ReplicatedSource
from shoal.serve.source import LoadOptions, VersionSource
from shoal.serve.targets import SourceFinder
from shoal.watch.record import RunRecord, resolve

FIRST_WAIT = 600
"""Seconds that a run may take to its first checkpoint."""


@dataclass(frozen=True)
class CoreMaker:
    """Called in each process that answers."""

    what: tuple[str, ...]
    models: ModelOptions
    settings: CoreSettings
    budget: int | None = None
    """Bytes of memory."""
    followed: Path | None = None
    """The folder of a run."""

    def __call__(self, shared: Path | None) -> ServingCore:
        """`shared` is a folder that the processes of one server have in common."""
        return self._core(self._sources(shared), shared)

    def replicated(self, hub: ReplicaHub) -> ServingCore:
        """The same, computed by replicas."""
        return self._core([ReplicatedSource(each, hub) for each in self._sources(None)], None)

    def _core(self, sources: Sequence[VersionSource], shared: Path | None) -> ServingCore:
        composites = [CompositeModel.parse(word) for word in self.models.combine or ()]
        return ServingCore(sources, self.settings, composites=composites, budget=self.budget, shared=shared)

    def _sources(self, shared: Path | None) -> list[VersionSource]:
        # One process alone has nobody to share weights with.
        mapped = MappedPrograms(shared) if shared is not None else None
        registry = Registry(self.models.models)
        how = LoadOptions(trusted=self.models.trust_pt2, module=self.models.module, mapped=mapped)
        if self.followed is not None:
            return [follow_source(self.followed, self.what, registry, how)]
        finder = SourceFinder(registry, how)
        return [finder.find(word) for word in self.what]


def find_run(models: ModelOptions, what: list[str]) -> Path:
    """The folder of the run that --follow names."""
    from shoal.core.record import runs_root

    if len(what) > 1:
        raise UsageError(
            f"--follow {models.follow} serves one model; give its name or its registered version, not {len(what)}"
        )
    return resolve(runs_root(models.runs), models.follow or "")


def await_checkpoint(directory: Path) -> None:
    """A run that has just begun has none yet."""
    if not has_checkpoint(directory):
        typer.echo(f"shoal: waiting for the first checkpoint of {directory.name}", err=True)
        # Two looks a second.
        wait_for_checkpoint(directory, lambda: time.sleep(0.5), attempts=2 * FIRST_WAIT)


def follow_source(directory: Path, what: tuple[str, ...], registry: Registry, how: LoadOptions) -> FollowSource:
    """The run's checkpoints under the name of the model: given, or that of the script."""
    from shoal.models.lineage import script_name

    name, equals, ref = (what[0] if what else "").partition("=")
    if not equals or not PATTERN.fullmatch(name):
        name, ref = "", what[0] if what else ""
    ref = ref or script_name(RunRecord.open(directory).info.script)
    programs = FilledModules(how.module) if how.module is not None else RefreshedPrograms(registry, ref, how)
    # At the start, so that a run that cannot be served is refused before anything is loaded.
    programs.check()
    return FollowSource(name or re.split("[:@]", ref)[0], directory, programs)
