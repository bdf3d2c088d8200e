"""Which engine carries what: by where a bucket lies, and by what the workers share."""

import copy
import os
from pathlib import Path
from typing import Protocol, cast

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store  # torch.distributed has them, unseen by mypy

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.mpi import MpiGroup
from shoal.groups.process_group import gloo
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import AllReduceEngine, PayloadEngine
from shoal.sync.engine.collective import CollectiveEngine, CollectivePayloads
from shoal.sync.engine.hierarchical import HierarchicalEngine
from shoal.sync.engine.link_payloads import LinkPayloads
from shoal.sync.engine.links import LinkEngine
from shoal.sync.engine.shared_memory import SharedMemoryEngine
from shoal.sync.engine.shared_memory_payloads import SharedMemoryPayloads

ENGINE_VARIABLE = "SHOAL_ENGINE"
ENGINES = ("auto", "memory", "collective")


class EngineSource(Protocol):
    """Where an aggregator gets its engines from."""

    def of(self, device: str) -> AllReduceEngine:
        """Return an engine that sums tensors on `device`."""

    def payloads(self) -> PayloadEngine:
        """Return an engine that carries payloads, which lie on the host."""


class SumServers(Protocol):
    """Processes that add up tensors for the workers."""

    def make_engine(self, group: WorkerGroup) -> AllReduceEngine:
        """Return an engine whose sums are made there."""


class ReservedEngines:
    """One engine of each kind, made before it is known which will be used."""

    def __init__(self, engines: EngineSource) -> None:
        # engines take channels and memory in the order they are made, which must be the same on all workers
        self._sums, self._payloads = engines.of("cpu"), engines.payloads()

    def of(self, device: str) -> AllReduceEngine:
        return self._sums

    def payloads(self) -> PayloadEngine:
        return self._payloads


class EngineChooser:
    """Chooses an engine by where a bucket lies: memory inside one host, links between hosts, NCCL for CUDA.

    gloo where the user trusts the network between the hosts, MPI's collectives under mpirun.

    One per run: what is joined later shares its process groups.
    """

    def __init__(self, group: WorkerGroup, directory: Path, by: str = "auto") -> None:
        """`by`: how sums are made over links, in the words of `allreduce(…)`."""
        self.group, self.directory, self.by = group, directory, by
        self.servers: SumServers | None = None
        """Where sums are made, if the plan says so."""
        self._process_groups: dict[str, dist.ProcessGroup] = {}
        self.wanted = os.environ.get(ENGINE_VARIABLE, "auto")
        if self.wanted not in ENGINES:
            raise UsageError(f"{ENGINE_VARIABLE}={self.wanted!r} is not an engine; use one of {', '.join(ENGINES)}")

    def with_algorithm(self, by: str) -> "EngineChooser":
        """Return a chooser that sums in another way over links and shares all else."""
        found = copy.copy(self)
        found.by = by
        return found

    def of(self, device: str) -> AllReduceEngine:
        if self.servers is not None:
            return self.servers.make_engine(self.group)
        if device == "cpu" and self.wanted != "collective" and isinstance(self.group, SharedGroup):
            return SharedMemoryEngine(self.group)
        if device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup):
            if self.group.local is None:
                return LinkEngine(self.group, algorithm=self.by)
            return HierarchicalEngine(self.group, self.by)
        return CollectiveEngine(self._process_group(device))

    def payloads(self) -> PayloadEngine:
        if self.wanted != "collective" and isinstance(self.group, SharedGroup):
            return SharedMemoryPayloads(self.group)
        if self.wanted == "auto" and isinstance(self.group, LinkedGroup):
            return LinkPayloads(self.group)
        return CollectivePayloads(self._process_group("cpu"))

    def _process_group(self, device: str) -> dist.ProcessGroup:
        if self.wanted == "memory":
            raise UsageError(f"{ENGINE_VARIABLE}=memory needs workers of one host and tensors on the CPU, not {device}")
        if device not in self._process_groups:
            self._process_groups[device] = self._meet(device)
        return self._process_groups[device]

    def background(self, device: str) -> bool:
        """Whether exchanges go on while the training thread computes, and need nothing more of it."""
        return device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup)

    def _meet(self, device: str) -> dist.ProcessGroup:
        group = self.group
        if isinstance(group, MpiGroup) and device == "cpu":
            return group.make_process_group()
        met = getattr(group, "store", None)
        if isinstance(group, SharedGroup):  # one host: nothing needs to be heard outside
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store: Store
        if met is not None:
            store = PrefixStore(f"engine/{device}", met)
        else:  # forked by `shoal run`: a file in the run's own folder, which the launcher removes
            store = FileStore(str(self.directory / f"rendezvous-{device}"), group.size)
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            return cast(dist.ProcessGroup, dist.ProcessGroupNCCL(store, group.rank, group.size, options))
        return gloo(store, group.rank, group.size, group.seconds)
