"""A peer that lies on links costs itself its place, and nobody else anything: no thread ends, no memory grows.

The liar holds a key of the book and speaks through real sockets; its messages are well formed. Honest workers sum and
gather meanwhile, and each of their waits ends, with the result or with the liar's name.
"""

import random
import re
import resource
import time
import zlib
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
import torch
from meshes import WAIT, begin, meshes, numbers
from toy import until

from shoal.core.errors import DeadlineError, PeerLost, ShoalError
from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask
from shoal.sync.engine.algorithms.butterfly import ButterflyAllReduce
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.sync.engine.algorithms.reduce_scatter_gather import ReduceScatterGather
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.sync.engine.algorithms.tree import TreeAllReduce
from shoal.testing.hostile import changed, is_readable
from shoal.transport import tasks as tasks_module
from shoal.transport.collectives import AllGather, ChainBroadcast
from shoal.transport.endpoint import BookEntry
from shoal.transport.frame_receiver import MOST_REFUSED
from shoal.transport.mesh import LinkMesh
from shoal.transport.message_body import MessageBody
from shoal.transport.messages import (
    CHUNK,
    AnyMessage,
    ChunkAck,
    ChunkHeader,
    LinkClosed,
    LinkHeartbeat,
    MessageAck,
    MessageChunk,
    MessageKind,
    encode,
    join_frame,
    pack,
)
from shoal.transport.messenger import CallReply, ReceivedMessage
from shoal.transport.tasks import CollectiveTask

NUMEL = 40_000
"""Three pieces of float32."""


REPEAT = 1.0
"""Seconds after which what was said is said again, where a test asks for it."""


class Liar:
    """Speaks to worker 0 as worker 1 does, in its place and under its key: its own loop is told what to say."""

    def __init__(self, made: list[LinkMesh]) -> None:
        self.mesh, self.victim, self.seq = made[1], made[0], 0
        self._said: deque[tuple[AnyMessage, bytes]] = deque(maxlen=8)
        self._next = time.monotonic() + REPEAT

    def repeat(self) -> None:
        """Say all again, now and then."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + REPEAT
            for message, frame in list(self._said):
                self._say(message, frame)

    def say(self, message: AnyMessage, frame: bytes = b"") -> None:
        self._said.append((message, frame))
        self._say(message, frame)

    def _say(self, message: AnyMessage, frame: bytes) -> None:
        peer = self.mesh.loop.peers[0]

        def send() -> None:
            if isinstance(message, MessageChunk):
                peer.chunk_socket.send(join_frame(encode(message), memoryview(frame))[0], copy=False)
            elif isinstance(message, ChunkHeader):
                peer.chunk_socket.send_multipart([encode(message), frame])
            else:
                peer.control_socket.send(encode(message))

        self.mesh.loop.call(send)

    def chunk(self, kind: str = "sum", frame: bytes = b"", **change: object) -> None:
        """The next chunk of a link, with what is changed of it."""
        chunk = ChunkHeader(
            "run", 0, 0, 1, self.seq, 0, 0, kind, 0, 0, 4 * NUMEL, 1, "float32", (len(frame) // 4,), zlib.crc32(frame)
        )
        chunk = msgspec.structs.replace(chunk, **change)
        self.seq += chunk.seq == self.seq
        self.say(chunk, frame)

    def message(self, kind: MessageKind = MessageKind.push, frame: bytes = b"", **change: object) -> None:
        """The next chunk of a message stream of its own, with what is changed of it."""
        chunk = MessageChunk("run", 0, 0, 1, self.seq, 1, kind, "port" * bool(frame), self.seq, 0, 0, len(frame), 1)
        chunk = msgspec.structs.replace(chunk, **change)
        self.seq += chunk.seq == self.seq
        self.say(chunk, frame)


def honest(victim: LinkMesh) -> None:
    """It is alive, and works for others."""
    assert victim.loop.is_alive(), victim.loop.failure
    assert victim.loop.failure is None


ALGORITHMS = (DirectSum, ReduceScatterGather, RingAllReduce, TreeAllReduce, ButterflyAllReduce)


def sum_of(kind: type[SumTask]) -> CollectiveTask:
    arithmetic, tensor = DtypeArithmetic(torch.float32), torch.ones(NUMEL)
    return kind(arithmetic.array(tensor), arithmetic.array(torch.zeros(NUMEL)), arithmetic)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: sum_of(DirectSum), "sum"),
        (lambda: sum_of(ReduceScatterGather), "owners"),
        (lambda: sum_of(RingAllReduce), "ring"),
        (lambda: sum_of(TreeAllReduce), "tree"),
        (lambda: sum_of(ButterflyAllReduce), "butterfly"),
    ],
)
@pytest.mark.parametrize("change", [{"index": 99}, {"index": 2**62}, {"phase": 9, "index": 0}])
def test_a_piece_that_does_not_exist_fails_the_sum_and_not_the_thread(
    make: Callable[[], CollectiveTask], kind: str, change: dict[str, object]
) -> None:
    with meshes(2) as made:
        task, liar = make(), Liar(made)
        made[0].submit(task)
        liar.chunk(kind, bytes(CHUNK), **change)
        with pytest.raises(ShoalError, match="worker 1 sends"):
            made[0].wait(task, WAIT)
        assert task.culprit == 1
        honest(made[0])


def test_a_piece_that_comes_twice_is_refused() -> None:
    """Else the sum would count as whole before all of it is there."""
    with meshes(2) as made:
        task, liar = sum_of(DirectSum), Liar(made)
        made[0].submit(task)
        for _ in range(2):
            liar.chunk("sum", bytes(CHUNK))
        with pytest.raises(ShoalError, match="again"):
            made[0].wait(task, WAIT)


@pytest.mark.parametrize(
    ("task", "kind"),
    [(AllGather(b"x"), "gather"), (ChainBroadcast(torch.zeros(9, dtype=torch.uint8).numpy(), 1), "broadcast")],
)
def test_an_empty_piece_out_of_order_is_refused(task: CollectiveTask, kind: str) -> None:
    with meshes(2) as made:
        made[0].submit(task)
        total = 9 if kind == "broadcast" else 2**29
        Liar(made).chunk(kind, b"", index=2**40, total=total, dtype="uint8")
        with pytest.raises(ShoalError, match="worker 1"):
            made[0].wait(task, WAIT)
        honest(made[0])


def test_a_peer_that_has_no_part_in_a_sum_cannot_spoil_it() -> None:
    with meshes(3) as made:
        pair, liar = [made[0], made[2]], Liar(made)
        for mesh in pair:
            mesh.reform(1, [0, 2])
        liar.chunk("sum", bytes(CHUNK), generation=1)
        until(lambda: made[0].link(1).into.expected == 1)
        tasks = begin(pair, numbers(2, NUMEL), DirectSum)
        for mesh, (task, _) in zip(pair, tasks, strict=True):
            mesh.wait(task, WAIT)


def test_memory_grows_as_bytes_arrive_and_not_by_what_was_announced() -> None:
    """60 KiB that announce a gigabyte are worth 60 KiB."""
    with meshes(2) as made:
        task, liar = AllGather(b"x", 1 << 30), Liar(made)
        made[0].submit(task)
        liar.chunk("gather", bytes(CHUNK), total=1 << 30, dtype="uint8", shape=(CHUNK,))
        until(lambda: 1 in task._parts)
        assert len(task._parts[1]) == CHUNK


def test_chunks_of_tasks_that_do_not_exist_take_a_peers_own_room_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "LARGEST_EARLY", 100 * tasks_module.EARLY_HEAD)
    with meshes(3) as made:
        liar = Liar(made)
        for number in range(500):
            liar.chunk("sum", b"", task=1000 + number)
        result = begin([made[0], made[2]], numbers(2, 10), DirectSum)  # worker 2 is heard all the same
        until(lambda: made[0].loop.tasks._early_bytes[1] >= 49 * tasks_module.EARLY_HEAD)
        until(lambda: result[0][0].missing() == [1])
        assert sum(len(early) for early in made[0].loop.tasks._early.values()) <= 50


def test_a_peer_whose_messages_cannot_be_read_is_suspected() -> None:
    with meshes(2) as made:
        liar = Liar(made)
        for _ in range(MOST_REFUSED):
            liar.say(LinkHeartbeat("another", 0, 0, 1, 0, 1, 1))
        until(lambda: 1 in made[0].loop.suspects)
        task = AllGather(b"x")
        made[0].submit(task)
        with pytest.raises(PeerLost, match="were refused"):
            made[0].wait(task, WAIT)
        honest(made[0])


def test_whatever_goes_wrong_by_a_message_suspects_its_sender_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with meshes(3) as made:
        monkeypatch.setattr(made[0].loop.chunk_sender, "echo", lambda peer, stamp: 1 / (peer.rank - 1))
        until(lambda: made[0].loop.suspects)
        assert set(made[0].loop.suspects) == {1}
        honest(made[0])


def test_a_word_does_not_make_a_worker_send_a_window_again_and_again() -> None:
    with meshes(2) as made:
        out = made[0].link(1).out
        assert [out.may_repeat(at / 100) for at in range(100, 200)].count(True) <= 6
        out.reset()
        assert out.may_repeat(2.0), "a new view begins anew"


def test_a_liar_outside_the_view_ends_no_wait() -> None:
    """Such as a newcomer that takes the state: it is in the book, and in no view that could go on without it."""
    with meshes(3) as made:
        pair = [made[0], made[2]]
        for mesh in pair:
            mesh.reform(1, [0, 2])
        Liar(made).message(generation=1, index=1)
        until(lambda: 1 in made[0].loop.suspects)
        task = sum_of(DirectSum)
        made[0].submit(task)
        with pytest.raises(DeadlineError, match="for worker 2"):  # which alone it waits for
            made[0].wait(task, 0.1)
        made[2].submit(sum_of(DirectSum))
        made[0].wait(task, WAIT)


def test_connections_of_an_evicted_peer_are_closed() -> None:
    with meshes(3) as made:
        until(lambda: made[0].link(1).connections)  # that for short words, for it has said some
        chunks, words = made[1].link(0).outgoing
        made[0].set_peers({rank: entry for rank, entry in made[0].loop.book.items() if rank != 1})
        made[0].reform(1, [0, 2])
        until(lambda: not words.up)
        Liar(made).chunk()  # of the other one nothing was known before this
        until(lambda: not chunks.up)
        assert made[0].link(2).outgoing[0].up, "nobody else's are"


def test_an_address_that_cannot_be_connected_is_a_peer_that_never_comes() -> None:
    with meshes(2) as made:
        made[0].set_peers({**made[0].loop.book, 2: BookEntry("tcp://nohost", made[0].loop.book[1].public)})
        honest(made[0])
        made[0].set_peers({**made[0].loop.book, 2: BookEntry("tcp://127.0.0.1:1", b"#" * 40)})
        honest(made[0])


def body(head: bytes = b"x", count: int = 4) -> bytes:
    made = MessageBody(head, [torch.zeros(count).numpy()])
    return bytes(made.cut(0, made.total))


@pytest.mark.parametrize(
    ("kind", "frame", "change", "why"),
    [
        (MessageKind.push, b"no body at all", {}, "specification"),
        (MessageKind.push, body()[:-1], {}, "shape"),
        (MessageKind.push, body(), {"total": 2**40}, "were due|it takes"),
        (MessageKind.push, body(), {"port": "another"}, "without credit"),
        (MessageKind.call, body(), {"index": 3}, "has not begun"),
        (MessageKind.hello, b"", {}, "middle of a stream"),
    ],
)
def test_a_message_that_no_honest_member_sends_costs_its_sender_its_place(
    kind: MessageKind, frame: bytes, change: dict[str, object], why: str
) -> None:
    with meshes(3) as made:
        heard: list[bytes] = []
        made[0].messenger.serve("port", lambda message: heard.append(message.head), 4)
        until(lambda: "port" in made[0].loop.exchange.ports)  # before that nothing has credit
        liar = Liar(made)
        liar.message(MessageKind.hello)
        liar.message(MessageKind.push, body(b"honest"))
        # said again, as an honest member would: what a broken connection held is lost
        until(lambda: heard == [b"honest"] or liar.repeat(), lambda: f"heard {heard}, {made[0].loop.suspects}")
        liar.message(kind, frame, **change)
        until(lambda: 1 in made[0].loop.suspects)
        assert re.search(why, made[0].loop.suspects[1])
        made[2].messenger.push("0", "port", b"from another").wait(WAIT)
        until(lambda: heard == [b"honest", b"from another"])
        honest(made[0])


def echo(message: ReceivedMessage) -> CallReply:
    return CallReply(message.head, message.arrays)


def message_lies(made: list[LinkMesh], chance: random.Random) -> list[tuple[AnyMessage, bytes]]:
    """Chunks and acknowledgements of message streams, each as it could be next."""
    into, out = made[0].link(1).message_in, made[0].link(1).message_out
    head, frame = ("run", made[0].generation, 0, 1), chance.choice((b"", body(), bytes(CHUNK)))
    stream = into.stream if into is not None and chance.random() < 0.7 else chance.randrange(1, 2**40)
    seq = into.link.expected if into is not None and stream == into.stream else 0
    kind = chance.choice(list(MessageKind)) if seq else MessageKind.hello
    if kind in (MessageKind.hello, MessageKind.credit, MessageKind.cancel):
        frame = b""
    number = into._last + 1 if into is not None else 0
    port = chance.choice(("port", "thread"))
    chunk = MessageChunk(*head, seq, stream, kind, port, number, number, 0, len(frame), 1)
    theirs = out.stream if out is not None else 1
    return [(chunk, frame), (chunk, frame), (MessageAck(*head, 0, theirs, 1, 1, 1, True, chance.random() < 0.5), b"")]


def fuzz(made: list[LinkMesh], chance: random.Random, count: int) -> int:
    """Well-formed messages with fields changed, while sums and gathers begin and end; how many there were."""
    liar, said = Liar(made), 0
    names = ["run", "w0.1"]
    while said < count:
        frame = chance.choice((b"", bytes(4), bytes(CHUNK)))
        payload = pack(torch.zeros(len(frame) // 4).numpy(), "float32")
        head = ("run", made[0].generation, 0, 1)
        expected = made[0].link(1).into.expected
        chunk = ChunkHeader(
            *head, expected, 0, chance.randrange(3), chance.choice(("sum", "ring", "owners", "gather")), 0,
            chance.randrange(4), 4 * NUMEL, 1, "float32", payload.shape, payload.crc,
        )  # fmt: skip
        messages: list[AnyMessage] = [
            chunk, chunk, chunk, ChunkAck(*head, 0, expected, 1, 1, True), LinkHeartbeat(*head, 0, 1, 1),
            LinkClosed(*head, 0, "ended", 0),
        ]  # fmt: skip
        lies = [*((message, frame) for message in messages), *message_lies(made, chance)]
        message, frame = chance.choice(lies)
        if not isinstance(message, MessageChunk) or chance.random() < 0.7:  # else it is heard, and followed
            message = changed(message, chance, names, keep=("run", "sender"))
        if is_readable(message, AnyMessage):
            liar.say(message, frame)
            said += 1
            if said % 50 == 0:
                settle(made, chance)
    return said


def settle(made: list[LinkMesh], chance: random.Random) -> None:
    """The liar is given up in one view and comes again in the next: as long as that the others work."""
    generation = made[0].generation + 1
    pair = [made[0], made[2]]
    for mesh in pair:
        honest(mesh)
        mesh.reform(generation, [0, 2])
    results = begin(pair, numbers(2, 1000), chance.choice(ALGORITHMS))
    for mesh, (task, _) in zip(pair, results, strict=True):
        mesh.wait(task, WAIT)
    for mesh in made:
        mesh.loop.suspects.clear()
        mesh.reform(generation + 1, [0, 1, 2])
    tasks = [sum_of(kind) for kind in ALGORITHMS]
    for task in tasks:
        made[0].submit(task)


def barrage(seed: int, count: int) -> None:
    with meshes(3) as made:
        made[0].messenger.serve("port", echo, 3, largest=1 << 20)
        made[0].messenger.serve("thread", echo, 3, largest=1 << 20)
        made[2].messenger.serve("port", echo, 3)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert fuzz(made, random.Random(seed), count) >= count
        settle(made, random.Random(seed))
        assert 2 not in made[0].loop.suspects, "only who lies is suspected"
        assert made[0].messenger.call("2", "port", b"still here", deadline=WAIT).head == b"still here"
        assert made[2].messenger.call("0", "thread", b"and back", deadline=WAIT).head == b"and back"
        assert not made[2].loop.suspects, "and only by whom it lies to"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 200 << 10, f"{grown} KiB more"


def test_a_thousand_lies_on_links() -> None:
    barrage(1, 1000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_lies_on_links(seed: int) -> None:
    barrage(100 + seed, 10_000)
