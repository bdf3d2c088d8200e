"""From a plan's description to the running thing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store  # torch.distributed has them, unseen by mypy

from shoal.cluster.group import Group
from shoal.cluster.linked import LinkedGroup
from shoal.cluster.shared import SharedGroup
from shoal.cluster.spread import gloo
from shoal.core.errors import UsageError
from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.plan.terms import Alone
from shoal.sync.engine.base import Engine
from shoal.sync.engine.collective import CollectiveEngine
from shoal.sync.engine.hosts import HostsEngine
from shoal.sync.engine.memory import MemoryEngine
from shoal.sync.engine.ring import RingEngine
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.alone import AloneExchange
from shoal.sync.exchange.base import Exchange
from shoal.sync.exchange.coded import CodedExchange
from shoal.sync.meet.base import Meeting
from shoal.sync.meet.cast import CastMeeting
from shoal.sync.meet.gather import GatherMeeting
from shoal.sync.meet.lowrank import LowRankMeeting
from shoal.sync.pace.base import Pace
from shoal.sync.pace.every import EveryPace
from shoal.sync.statistics import Statistics
from shoal.wire.codec import Codec
from shoal.wire.codecs.cast import Cast
from shoal.wire.codecs.lowrank import LowRank
from shoal.wire.wrappers.feedback import Feedback

ENGINE_VARIABLE = "SHOAL_ENGINE"
ENGINES = ("auto", "memory", "collective")


def build_exchange(plan: Plan, group: Group, engines: "Engines", seed: int = 0) -> Exchange:
    """HOW, and WHAT travels: nothing at all for a world of one, whatever the plan says."""
    if (group.size == 1 and not group.session.elastic) or isinstance(plan.exchange, Alone):
        return AloneExchange()
    exchange = AllReduceExchange(group, engines.of)
    codec = compose(plan.wire, group.size)
    return exchange if codec is None else CodedExchange(exchange, build_meeting(codec, group, engines, seed))


def build_meeting(codec: Codec, group: Group, engines: "Engines", seed: int) -> Meeting:
    """How payloads meet: summed if a codec's add up, else gathered. Codecs work on the host, whatever the device."""
    engine = engines.of("cpu")
    inner = codec.codec if isinstance(codec, Feedback) else codec
    if isinstance(inner, LowRank):
        return LowRankMeeting(inner, engine, feedback=inner is not codec)
    if isinstance(codec, Cast):
        meeting = CastMeeting(codec, engine, group.size)
        group.session.entered.append(lambda view: meeting.entered(len(view), newcomers=bool(group.session.fresh)))
        return meeting
    return GatherMeeting(codec, engine, group.rank, seed)


def build_pace(
    exchange: Exchange,
    names: Sequence[str],
    parameters: Sequence[Tensor],
    sparse: Sequence[int],
    statistics: Statistics,
) -> Pace:
    """WHEN."""
    return EveryPace(exchange, names, parameters, sparse, statistics)


class Engines:
    """Chooses an engine by where a bucket lies: memory inside one host, links between hosts, NCCL for CUDA.

    gloo where the user trusts the network between the hosts.

    One per run: what is joined later shares its process groups.
    """

    def __init__(self, group: Group, directory: Path) -> None:
        self.group, self.directory = group, directory
        self._process_groups: dict[str, dist.ProcessGroup] = {}
        self.wanted = os.environ.get(ENGINE_VARIABLE, "auto")
        if self.wanted not in ENGINES:
            raise UsageError(f"{ENGINE_VARIABLE}={self.wanted!r} is not an engine; use one of {', '.join(ENGINES)}")

    def of(self, device: str) -> Engine:
        if device == "cpu" and self.wanted != "collective" and isinstance(self.group, SharedGroup):
            return MemoryEngine(self.group)
        if device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup):
            return HostsEngine(self.group) if self.group.local is not None else RingEngine(self.group)
        if self.wanted == "memory":
            raise UsageError(f"{ENGINE_VARIABLE}=memory needs workers of one host and tensors on the CPU, not {device}")
        if device not in self._process_groups:
            self._process_groups[device] = self._meet(device)
        return CollectiveEngine(self._process_groups[device])

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


def default_device(rank: int) -> torch.device:
    """The device of a worker: one of the host's CUDA devices in turn, or the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % count) if count else torch.device("cpu")
