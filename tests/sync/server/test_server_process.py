"""A server process outlives whatever a connection sends, and answers the next."""

import zmq

from shoal.launch.services import RunService, ServiceProcesses
from shoal.sync.server.array_places import ArrayPlace, PlacedArrays
from shoal.sync.server.array_places import encode as encode_placed
from shoal.sync.server.connection import NUMBER
from shoal.sync.server.messages import FailedReply, OpenRequest, RoundReply, decode_reply, encode
from shoal.sync.server.process import serve_shards

NOWHERE = encode_placed(PlacedArrays([None]))
OPENS = encode(OpenRequest(0, "add", {}, 1, 1, ["w0.0"]))
NONSENSE = [
    [b""],
    [b"short"],
    [NUMBER.pack(1)],
    [b"no head", b""],
    [b"", b"", b""],
    [NUMBER.pack(2) + b"no request", NOWHERE, b"x" * 100],
    [NUMBER.pack(3) + encode(OpenRequest(0, "add", {"name": 1.0}, 1, 1, ["w0.0"])), NOWHERE, bytes(16)],
    [NUMBER.pack(4) + OPENS, b"no places", bytes(16)],
    [NUMBER.pack(5) + OPENS, encode_placed(PlacedArrays([ArrayPlace(0, 0, 16)]))],
    [NUMBER.pack(6) + OPENS, encode_placed(PlacedArrays([None], ArrayPlace(2**30, 2**30, 2**30))), bytes(16)],
    [NUMBER.pack(7) + OPENS, NOWHERE, bytes(16), bytes(16)],
]


def test_what_is_no_request_is_dropped_or_refused_and_the_next_is_answered() -> None:
    services = ServiceProcesses((RunService("server 0", serve_shards),))
    services.open()
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IDENTITY, b"w0.0")
            socket.connect(services.addresses[0])
            for message in NONSENSE:
                socket.send_multipart(message)
            socket.send_multipart([NUMBER.pack(8) + OPENS, NOWHERE, bytes(16)])
            found = {}
            while 8 not in found:
                assert socket.poll(60_000), "the server is gone"
                head, *_ = socket.recv_multipart()
                found[NUMBER.unpack_from(head)[0]] = type(decode_reply(head[NUMBER.size :], "server 0"))
        assert found == {**dict.fromkeys(range(2, 8), FailedReply), 8: RoundReply}
        assert services.find_dead() is None
    finally:
        services.close()
