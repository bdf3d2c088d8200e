"""The training of recovery.py under torchft, as its own example has it: one replica group of one process.

Samples are those of the group's number, whoever else is there, at the place that the common step says: a step that is
made again takes the same ones; those of a group that is away are nobody's.
"""

import socket
import sys
from datetime import timedelta

import torch
from recovery_model import BATCH, SAMPLES, Log, data, model
from torch.distributed import TCPStore
from torch.nn.functional import cross_entropy

folder, group, groups, address, lighthouse = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
socket.gethostname = lambda: address  # hosts of a lab have no names, and torchft tells the others its host's

from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402


class Together(DistributedDataParallel):
    """With a hook that lives on when an allreduce fails: in 0.2.0 an assertion of its own ends the process then."""

    @staticmethod
    def _comm_hook(state: Manager, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.allreduce(bucket.buffer()).wait()  # a failure is told to the manager, which does not commit then
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


torch.set_num_threads(1)
net = model()
inner = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def load(state: dict[str, dict[str, object]]) -> None:
    net.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),  # its example's
    load_state_dict=load,
    state_dict=lambda: {"model": net.state_dict(), "optimizer": inner.state_dict()},
    min_replica_size=2,
    timeout=timedelta(seconds=30),
    quorum_timeout=timedelta(seconds=120),  # a replica ends after it; the lighthouse is stopped for 60
    rank=0,
    world_size=1,
    store_addr=address,
    store_port=store.port,
    lighthouse_addr=lighthouse,
    replica_id=f"recovery_{group}",
    hostname=address,
    init_sync=False,  # all begin with the same weights
)
together, optimizer = Together(manager, net), Optimizer(manager, inner)
x, y = data().tensors
batches = SAMPLES // BATCH // groups
log = Log(folder, group)
while True:
    epoch, place = divmod(manager.current_step(), batches)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[group::groups]
    chosen = order[place * BATCH : (place + 1) * BATCH]
    optimizer.zero_grad()
    cross_entropy(together(x[chosen]), y[chosen]).backward()
    before, counts = manager.current_step(), manager.is_participating()
    optimizer.step()
    if manager.current_step() > before and counts:
        log.step(manager.current_step(), manager.num_participants())
