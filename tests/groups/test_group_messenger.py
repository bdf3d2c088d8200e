"""`group.messenger`: the same calls whether workers share memory or meet over links, and what a lost member ends."""

import numpy as np
import pytest
import torch
from changing import changing

from shoal.core.errors import PeerLost, UsageError
from shoal.groups.base import SingleWorkerGroup
from shoal.membership.session import member_name
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.transport.messenger import CallReply, ReceivedMessage

WAIT = 60.0


@pytest.mark.parametrize("links", [False, True], ids=["memory", "links"])
def test_workers_call_each_other_by_their_ids_until_one_is_lost(links: bool) -> None:
    def body(world: WorkerWorld) -> Result:
        group, session = changing(world, links)
        names = list(session.view.members) if not links else [str(rank) for rank in range(3)]
        me = names[group.rank]

        def double(message: ReceivedMessage) -> CallReply:
            return CallReply(message.head + me.encode(), [2 * array for array in message.arrays])

        group.messenger.serve("double", double, credit=4)
        for rank, name in enumerate(names):
            if rank != group.rank:
                reply = group.messenger.call(name, "double", b"of ", [np.arange(500_000)], deadline=WAIT)
                assert reply.head == b"of " + name.encode()
                assert int(reply.arrays[0][-1]) == 2 * 499_999
        group.gather(b"all have called")
        if not links and group.rank < 2:
            session.change([member_name(0), member_name(1)])
            with pytest.raises(PeerLost, match="is no member"):
                group.messenger.call(names[2], "double", deadline=WAIT)
            other = names[1 - group.rank]
            assert group.messenger.call(other, "double", b"still ", deadline=WAIT).head == b"still " + other.encode()
            group.gather(b"done")
        return {"ok": torch.ones(1)}

    assert len(run_world(3, body)) == 3


def test_a_world_of_one_has_nobody_to_write_to() -> None:
    with pytest.raises(UsageError, match="exchange no messages"):
        _ = SingleWorkerGroup().messenger
