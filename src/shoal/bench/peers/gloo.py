"""The default process group of `torch.distributed` on gloo over loopback: what PyTorch's own tools talk through."""

import os
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # torch.distributed has it, unseen by mypy

from shoal.bench.peers.base import PeerPlace


def open_group(place: PeerPlace) -> None:
    """Find the other workers through a file in the run's folder."""
    # Otherwise gloo takes the address behind the host name, which need not be one of this machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(str(place.dir / "rendezvous-peer"), place.size)
    wait = timedelta(seconds=place.seconds)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=wait)


def close_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
