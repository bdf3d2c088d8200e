"""Meshes of real sockets: sums, losses, new views, breaks, silence, and messages that come twice or too late."""

import re
import threading
from pathlib import Path

import pytest
import torch
from forked import soon
from meshes import WAIT, begin, kill, meshes, numbers, total
from proxy import Proxy

from shoal.core.errors import DeadlineError, LayoutError, PeerLost, ShoalError
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.sync.engine.algorithms.reduce_scatter_gather import ReduceScatterGather
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.transport.collectives import AllGather
from shoal.transport.messages import LinkClosed, encode


def check(results, tensors) -> None:
    wanted = torch.stack([tensor.double() for tensor in tensors]).sum(0)
    for result in results:
        assert torch.equal(result.double(), wanted)


def test_one_lost_the_others_go_on(tmp_path: Path) -> None:
    """Four lose one in the middle of a sum; three form another view on the same sockets and repeat it."""
    tensors = numbers(4, 300_000)
    kept = [tensor.clone() for tensor in tensors]
    with meshes(4) as made:
        check(total(made, tensors), tensors)
        rest = [mesh for mesh in made if mesh.rank != 2]
        mine = [tensors[mesh.rank] for mesh in rest]
        kill(made[2])
        tasks = begin(rest, mine)
        for mesh, (task, _) in zip(rest, tasks, strict=True):
            with pytest.raises(PeerLost, match=rf"worker {mesh.rank} stops: worker 2 \(host c\).* is gone"):
                mesh.wait(task, WAIT)
        for mesh in rest:
            mesh.abort("worker 2 is lost")
        assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True)), "what was handed in is intact"
        for mesh in rest[::-1]:
            mesh.reform(1, [0, 1, 3])
        for kind in (RingAllReduce, ReduceScatterGather, DirectSum):
            check(total(rest, mine, kind), mine)
        with pytest.raises(ShoalError, match="generations grow"):
            rest[0].reform(1, [0, 1, 3])


def test_a_view_that_not_all_have_yet_waits_for_them(tmp_path: Path) -> None:
    """Two are in generation 1 and send; the third, still in generation 0, hears nothing of it before it follows."""
    tensors = numbers(3, 20_000)
    with meshes(3, tmp_path) as made:
        for mesh in made[:2]:
            mesh.reform(1, [0, 1, 2])
        tasks = begin(made[:2], tensors[:2])
        assert soon(WAIT, lambda: made[2].loop.receiver.stale > 0)
        made[2].reform(1, [0, 1, 2])
        tasks += begin(made[2:], tensors[2:])
        for mesh, (task, _) in zip(made, tasks, strict=True):
            mesh.wait(task, WAIT)
        check([result for _, result in tasks], tensors)


def test_a_chunk_acknowledges_what_came_before_it(tmp_path: Path) -> None:
    """Where both send in turns nobody needs a word of its own; who closes gets it at once."""
    with meshes(2, tmp_path) as made:
        for mesh in made:
            mesh.loop.chunk_sender.ack_seconds = 3600.0
        for number in range(20):
            tasks = [AllGather(f"{number}".encode()) for _ in made]
            for mesh, task in zip(made, tasks, strict=True):
                mesh.submit(task)
            for mesh, task in zip(made, tasks, strict=True):
                mesh.wait(task, WAIT)
        for mesh, peer in zip(made, (1, 0), strict=True):
            assert mesh.link(peer).out.arrived >= 18
            assert mesh.link(peer).out.estimate.rtt is not None
        for mesh in made:
            mesh.loop.call(mesh.loop.acknowledge_at_once)
        assert soon(WAIT, lambda: made[0].link(1).out.idle and made[1].link(0).out.idle)


def test_nothing_is_on_a_link_twice_when_a_view_begins(tmp_path: Path) -> None:
    """What leaves before its receiver is in the view, or before the way there is open, would have to leave again."""
    tensors = numbers(2, 1_000_000)
    with meshes(2, tmp_path) as made:
        check(total(made, tensors), tensors)
        before = [mesh.loop.receiver.repeated for mesh in made]
        made[0].reform(1, [0, 1])
        tasks = begin(made[:1], tensors[:1])
        assert soon(WAIT, lambda: made[1].link(0).generation == 1)
        assert not made[0].link(1).out.in_flight
        made[1].reform(1, [0, 1])
        tasks += begin(made[1:], tensors[1:])
        for mesh, (task, _) in zip(made, tasks, strict=True):
            mesh.wait(task, WAIT)
        check([result for _, result in tasks], tensors)
        assert [mesh.loop.receiver.repeated for mesh in made] == before


def test_an_abort_ends_a_wait_in_another_thread(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        ((task, _),) = begin(made[:1], numbers(1, 5000))
        threading.Timer(0.1, lambda: made[0].abort("the user said so")).start()
        with pytest.raises(PeerLost, match="worker 0 stops: the user said so"):
            made[0].wait(task, WAIT)


def test_connections_that_break_off_in_a_tensor_lose_nothing() -> None:
    proxies: list[Proxy] = []

    def through(address: str) -> str:
        proxies.append(Proxy(address))
        return proxies[-1].address

    tensors = numbers(2, 500_000)
    try:
        with meshes(2, through=through) as made:
            for after in (100_000, 400_000, 700_000):
                proxies[1].cut_after(after)
                check(total(made, tensors), tensors)
            assert soon(WAIT, lambda: proxies[1].cuts == 3)
            check(total(made, tensors), tensors)
    finally:
        for proxy in proxies:
            proxy.close()


def test_a_peer_that_falls_silent_is_named() -> None:
    """Its connections are open, and nothing comes: only a deadline sees that."""
    proxies: list[Proxy] = []

    def through(address: str) -> str:
        proxies.append(Proxy(address))
        return proxies[-1].address

    try:
        with meshes(2, silence=1.0, through=through) as made:
            tensors = numbers(2, 100_000)
            check(total(made, tensors), tensors)
            for proxy in proxies:
                proxy.held.set()
            ((task, _),) = begin(made[:1], tensors[:1])
            with pytest.raises(PeerLost, match=r"worker 1 \(host b\).* has been silent for \d"):
                made[0].wait(task, WAIT)
    finally:
        for proxy in proxies:
            proxy.close()


def test_a_peer_that_lives_and_does_nothing_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    with meshes(2, tmp_path, silence=1.0) as made:
        ((task, _),) = begin(made[:1], numbers(1, 100))
        seen: list[str] = []
        looker = threading.Thread(target=lambda: soon(WAIT, lambda: seen.append(made[0].waiting()) or seen[-1]))
        looker.start()
        with pytest.raises(DeadlineError, match="worker 0 waited 3 s for worker 1"):
            made[0].wait(task, 3.0)
        looker.join(WAIT)
        assert re.match(r"waiting \d+\.\d s for worker 1", seen[-1])
        assert made[0].waiting() == ""


def test_who_ended_is_told_from_who_is_lost(tmp_path: Path) -> None:
    with meshes(3, tmp_path) as made:
        made[1].close("ended")
        tasks = begin([made[0], made[2]], numbers(2, 100), DirectSum)
        with pytest.raises(PeerLost, match="worker 1, which has ended"):
            made[0].wait(tasks[0][0], WAIT)
        made[0].close()
        with pytest.raises(PeerLost, match="worker 1"):
            made[2].wait(tasks[1][0], WAIT)


def test_workers_that_do_different_things_are_told(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        begin(made[:1], numbers(1, 100), DirectSum)
        ((task, _),) = begin(made[1:], numbers(1, 101), DirectSum)
        with pytest.raises(LayoutError, match="worker 0 is in a sum of 400 bytes where worker 1 is in a sum of 404"):
            made[1].wait(task, WAIT)


def test_replayed_and_foreign_messages_change_nothing(tmp_path: Path) -> None:
    """Every chunk is sent again three times, also after the generation: each counts once."""
    tensors = numbers(2, 60_000)
    with meshes(2, tmp_path) as made:
        loop = made[0].loop
        peer, sent = loop.peers[1], []
        once = loop.chunk_sender.transmit

        def thrice(to, in_flight) -> None:
            sent.append(in_flight)
            for _ in range(3):
                once(to, in_flight)

        loop.chunk_sender.transmit = thrice  # type: ignore[method-assign]
        for _ in range(5):
            check(total(made, tensors), tensors)
        assert soon(WAIT, lambda: made[1].loop.receiver.repeated >= 2 * len(sent) > 0)
        for mesh in made:
            mesh.reform(1, [0, 1])
        old = list(sent)  # of generation 0
        loop.call(lambda: [once(peer, in_flight) for in_flight in old])
        loop.call(lambda: peer.chunk_socket.send(encode(LinkClosed("another run", 1, 0, 0, 0, "ended", 1))))
        check(total(made, tensors), tensors)
        assert soon(WAIT, lambda: made[1].loop.receiver.stale >= len(old) and made[1].loop.receiver.refused == 1)
        assert made[1].link(0).bye is None


def test_links_know_their_round_trip_and_rate(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        total(made, numbers(2, 1_000_000))
        estimate = made[0].link(1).out.estimate
        assert soon(WAIT, lambda: estimate.rtt is not None and estimate.rate is not None)
        assert 0 < estimate.rtt < WAIT
        assert estimate.rate > 0


def test_gathering_takes_any_size(tmp_path: Path) -> None:
    with meshes(3, tmp_path) as made:
        data = [b"", b"x" * 200_000, b"y"]
        tasks = [AllGather(each) for each in data]
        for mesh, task in zip(made, tasks, strict=True):
            mesh.submit(task)
        for mesh, task in zip(made, tasks, strict=True):
            mesh.wait(task, WAIT)
            assert task.result == data


def test_what_was_gathered_can_be_read_without_a_copy(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        data = [bytearray(b"x" * 100_000), bytearray(b"y")]
        tasks = [AllGather(each) for each in data]
        for mesh, task in zip(made, tasks, strict=True):
            mesh.submit(task)
        for mesh, task in zip(made, tasks, strict=True):
            mesh.wait(task, WAIT)
            assert task.buffers == data
            assert task.buffers[mesh.rank] is data[mesh.rank]
            assert all(one is other for one, other in zip(task.buffers, task.buffers, strict=True))


def test_nothing_stays_behind(tmp_path: Path) -> None:
    with meshes(3) as made:
        threads = [mesh.loop for mesh in made]
        total(made, numbers(3, 1000))
    assert not any(thread.is_alive() for thread in threads)
