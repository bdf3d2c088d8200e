"""Which engine carries what: by where a bucket lies, and by what the workers share."""

import os
from pathlib import Path
from typing import cast

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store  # torch.distributed has them, unseen by mypy

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.process_group import gloo
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.engine.collective import CollectiveEngine
from shoal.sync.engine.hierarchical import HierarchicalEngine
from shoal.sync.engine.leader import LeaderEngine
from shoal.sync.engine.links import LinkEngine
from shoal.sync.engine.shared_memory import SharedMemoryEngine

ENGINE_VARIABLE = "SHOAL_ENGINE"
ENGINES = ("auto", "memory", "collective")


class EngineChooser:
    """Chooses an engine by where a bucket lies: memory inside one host, links between hosts, NCCL for CUDA.

    gloo where the user trusts the network between the hosts.

    One per run: what is joined later shares its process groups.
    """

    def __init__(self, group: WorkerGroup, directory: Path, by: str = "auto") -> None:
        """`by`: how sums are made over links, in the words of `allreduce(…)`."""
        self.group, self.directory, self.by = group, directory, by
        self._process_groups: dict[str, dist.ProcessGroup] = {}
        self.wanted = os.environ.get(ENGINE_VARIABLE, "auto")
        if self.wanted not in ENGINES:
            raise UsageError(f"{ENGINE_VARIABLE}={self.wanted!r} is not an engine; use one of {', '.join(ENGINES)}")

    def of(self, device: str) -> ExchangeEngine:
        if device == "cpu" and self.wanted != "collective" and isinstance(self.group, SharedGroup):
            return SharedMemoryEngine(self.group)
        if device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup):
            if self.group.local is None:
                return LinkEngine(self.group, by=self.by)
            kind = HierarchicalEngine if len(self.group.local.places) > 1 else LeaderEngine
            return kind(self.group, self.by)
        if self.wanted == "memory":
            raise UsageError(f"{ENGINE_VARIABLE}=memory needs workers of one host and tensors on the CPU, not {device}")
        if device not in self._process_groups:
            self._process_groups[device] = self._meet(device)
        return CollectiveEngine(self._process_groups[device])

    def background(self, device: str) -> bool:
        """Whether exchanges go on while the training thread computes, and need nothing more of it."""
        return device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup)

    def _meet(self, device: str) -> dist.ProcessGroup:
        group = self.group
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
