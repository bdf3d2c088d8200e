"""The peers by name."""

from shoal.bench.peers.base import BenchPeer
from shoal.bench.peers.ddp import DdpFp16Peer, DdpPeer, DdpPowerSgdPeer
from shoal.bench.peers.localsgd import LocalSgdPeer

PEERS: dict[str, type[BenchPeer]] = {
    "ddp": DdpPeer,
    "ddp-fp16": DdpFp16Peer,
    "ddp-powersgd": DdpPowerSgdPeer,
    "ddp-localsgd": LocalSgdPeer,
}
