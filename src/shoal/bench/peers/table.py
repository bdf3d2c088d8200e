"""The peers by name."""

from shoal.bench.peers.base import Peer
from shoal.bench.peers.ddp import Ddp, DdpFp16, DdpPowerSgd
from shoal.bench.peers.localsgd import LocalSgd

PEERS: dict[str, type[Peer]] = {
    "ddp": Ddp,
    "ddp-fp16": DdpFp16,
    "ddp-powersgd": DdpPowerSgd,
    "ddp-localsgd": LocalSgd,
}
